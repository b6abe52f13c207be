"""The forward kernel of depth attention for TPUs: every source is read once.

All N tiles of a tile of tokens lie in on-chip memory. A first sweep over them gives the logits, a
second one mixes; nothing is rescaled, and only the output and two numbers per source and token go
back to memory.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention import tiles, tpu_plan
from resjax.kernels.depth_attention.operands import Operands, Read, Stats
from resjax.kernels.depth_attention.tiles import LANES, ROWS
from resjax.kernels.depth_attention.tpu_plan import Plan, load, store
from resjax.typing import Array


class _Inputs(NamedTuple):
  """Arrays, their specs, or references to tiles of them."""

  query: Any
  out_norm_scale: Any
  slots: tuple
  addend: Any


class _Outputs(NamedTuple):
  out: Any
  running: Any
  inverse_rms: Any
  logits: Any
  lse: Any


class _Scratch(NamedTuple):
  """On-chip memory.

  Attributes:
    squares, dots: [tokens of a tile of statistics, LANES], a slot per lane: |v|² and g · v, then
      inverse RMS and logits.
    weights: [tokens of a tile, LANES], a slot per lane.
    mixed: [ROWS, D].
  """

  squares: Any
  dots: Any
  weights: Any
  mixed: Any


def forward(read: Read, plan: Plan, operands: Operands) -> tuple[Array, Array | None, Stats]:
  """Runs the kernel on the rows of one device; see reference.py."""
  inputs = _inputs(operands)
  outputs = _output_shapes(plan, read.adds)
  call = pl.pallas_call(
    partial(_kernel, plan),
    out_shape=(outputs,),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=plan.grid,
      in_specs=(_input_specs(plan, inputs),),
      out_specs=(_output_specs(plan, read.adds),),
      scratch_shapes=(_scratch_shapes(plan),),
    ),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"),
      vmem_limit_bytes=tiles.vmem_limit(plan.work),
    ),
    cost_estimate=_cost(plan, inputs, outputs),
    interpret=read.interpret,
    name="depth_attention_forward",
  )
  (got,) = call(operands.counts, inputs)
  tokens = plan.work.num_tokens
  stats = Stats(got.inverse_rms[:, :tokens], got.logits[:, :tokens], got.lse[0, :tokens])
  return got.out, got.running, stats


def _inputs(operands: Operands) -> _Inputs:
  banked = () if operands.bank is None else (operands.bank,) * len(operands.bank)
  scale = operands.out_norm_scale
  return _Inputs(
    tpu_plan.spread_rows(operands.query),
    None if scale is None else tpu_plan.spread_rows(scale),
    (*banked, *operands.recent),
    operands.addend,
  )


def _input_specs(plan: Plan, inputs: _Inputs) -> _Inputs:
  return _Inputs(
    plan.row_spec(),
    None if inputs.out_norm_scale is None else plan.row_spec(),
    plan.slot_specs(),
    None if inputs.addend is None else plan.tokens_spec(),
  )


def _output_shapes(plan: Plan, adds: bool) -> _Outputs:
  tokens = jax.ShapeDtypeStruct((plan.work.num_tokens, plan.work.width), plan.work.dtype)
  slots, total = (
    jax.ShapeDtypeStruct((n, plan.padded_tokens), jnp.float32) for n in (plan.work.num_slots, 1)
  )
  return _Outputs(tokens, tokens if adds else None, slots, slots, total)


def _output_specs(plan: Plan, adds: bool) -> _Outputs:
  tokens, slots = plan.tokens_spec(), plan.stats_spec(plan.work.num_slots)
  return _Outputs(tokens, tokens if adds else None, slots, slots, plan.stats_spec(1))


def _scratch_shapes(plan: Plan) -> _Scratch:
  columns = pltpu.VMEM((plan.stats_tokens, LANES), jnp.float32)
  weights = pltpu.VMEM((plan.tiles.tokens, LANES), jnp.float32)
  return _Scratch(columns, columns, weights, pltpu.VMEM((ROWS, plan.work.width), jnp.float32))


def _cost(plan: Plan, inputs: _Inputs, outputs: _Outputs) -> pl.CostEstimate:
  moved = inputs._replace(slots=outputs.out), outputs
  sources = (plan.work.num_slots - 1) * tpu_plan.num_bytes(outputs.out)
  elements = plan.work.num_slots * plan.work.num_tokens * plan.work.width
  return pl.CostEstimate(
    flops=6 * elements,
    transcendentals=2 * plan.work.num_slots * plan.work.num_tokens,
    bytes_accessed=sources + tpu_plan.num_bytes(*moved),
  )


def _kernel(plan: Plan, counts, inputs: _Inputs, outputs: _Outputs, scratch: _Scratch):
  step = pl.program_id(1)
  place = lax.rem(step, plan.tiles_per_stats)
  if plan.work.num_recent:
    _prepare_last(plan, counts, inputs, outputs)

  # Three sweeps over the tile: in each all rows are independent, which hides latencies.
  first = pl.multiple_of(place * plan.tiles.tokens, ROWS)
  plan.for_each_row_group(
    lambda rows: _dot(plan, counts, inputs, scratch, rows, pl.ds(first + rows.start, ROWS))
  )
  _softmax(plan, counts, scratch, first)
  plan.for_each_row_group(lambda rows: _read(plan, counts, inputs, outputs, scratch, rows))

  @pl.when((place == plan.tiles_per_stats - 1) | (step == plan.grid[1] - 1))
  def _():
    _write_stats(plan, scratch, outputs)


def _prepare_last(plan: Plan, counts, inputs: _Inputs, outputs: _Outputs) -> None:
  """Adds the addend to the last source; zeroes that one where it does not count."""
  last, counted = inputs.slots[-1], counts[1] > 0
  if inputs.addend is not None:

    def add(rows):
      def chunk(lanes, _):
        total = load(last, rows, lanes) + load(inputs.addend, rows, lanes)
        store(outputs.running, rows, lanes, total)
        last[rows, lanes] = outputs.running[rows, lanes]

      plan.for_each_chunk(chunk)

    plan.for_each_row_group(add)

  @pl.when(jnp.logical_not(counted))
  def _():
    last[...] = jnp.zeros_like(last)


def _dot(plan: Plan, counts, inputs: _Inputs, scratch: _Scratch, rows, columns) -> None:
  """Writes |v|² and g · v of every source to its lane."""
  for ref in (scratch.squares, scratch.dots):
    store(ref, columns, slice(None), tpu_plan.zero_chunk())

  def group(slots):
    def chunk(lanes, sums):
      query, new = inputs.query[:, lanes], []
      for slot, (square, dot) in zip(slots, sums, strict=True):
        x = load(inputs.slots[slot], rows, lanes)
        new.append((square + x * x, dot + x * query))
      return new

    zero = tpu_plan.zero_chunk()
    sums = plan.for_each_chunk(chunk, [(zero, zero) for _ in slots])
    squares, dots = zip(*sums, strict=True)
    tpu_plan.put_columns(scratch.squares, columns, slots, squares)
    tpu_plan.put_columns(scratch.dots, columns, slots, dots)

  plan.for_each_group(counts, group)


def _softmax(plan: Plan, counts, scratch: _Scratch, first) -> None:
  """Turns squares into inverse RMS, dots into logits; writes the weights."""
  size = min(plan.tiles.tokens, LANES)
  valid = plan.valid_lanes(counts, size)
  for start in range(0, plan.tiles.tokens, size):
    rows = pl.ds(pl.multiple_of(first + start, ROWS), size)
    inverse_rms = lax.rsqrt(scratch.squares[rows, :] / plan.work.width + plan.eps)
    logits = jnp.where(valid, scratch.dots[rows, :] * inverse_rms, -jnp.inf)
    scratch.squares[rows, :] = inverse_rms
    scratch.dots[rows, :] = logits
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    scratch.weights[pl.ds(start, size), :] = weights / total


def _read(plan: Plan, counts, inputs: _Inputs, outputs: _Outputs, scratch: _Scratch, rows) -> None:
  """Writes the output of a group of rows."""
  weights = scratch.weights.at[rows]
  one_group = not plan.work.num_banked and plan.work.num_recent <= plan.tiles.slots
  if one_group and inputs.out_norm_scale is None:
    mix(plan, counts, inputs.slots, weights, rows, outputs.out, rows)
    return
  mix(plan, counts, inputs.slots, weights, rows, scratch.mixed, pl.ds(0, ROWS))
  _write(plan, inputs.out_norm_scale, scratch.mixed, outputs.out, rows)


def mix(plan: Plan, counts, slot_refs: tuple, weights, rows, target, target_rows) -> None:
  """Writes h = Σ_n p_n v_n of a group of rows; `target` is added to where slots are many."""
  if plan.work.num_banked:
    target[target_rows, :] = jnp.zeros((ROWS, plan.work.width), target.dtype)

  def group(slots):
    spread = [tpu_plan.column(weights, slot) for slot in slots]
    adds = plan.work.num_banked or slots.start > 0

    def chunk(lanes, _):
      total = load(target, target_rows, lanes) if adds else 0.0
      for slot, weight in zip(slots, spread, strict=True):
        total += weight * load(slot_refs[slot], rows, lanes)
      store(target, target_rows, lanes, total)

    plan.for_each_chunk(chunk)

  plan.for_each_group(counts, group)


def _write(plan: Plan, scale, mixed, out, rows) -> None:
  """Writes h, normalised if there is a scale."""
  here = pl.ds(0, ROWS)
  inverse_rms = None if scale is None else mixed_inverse_rms(plan, mixed)

  def chunk(lanes, _):
    x = load(mixed, here, lanes)
    store(out, rows, lanes, x if scale is None else x * inverse_rms * scale[:, lanes])

  plan.for_each_chunk(chunk)


def mixed_inverse_rms(plan: Plan, mixed) -> Array:
  """Returns 1 / RMS(h) of every row [ROWS / 8, 8, 1]."""

  def chunk(lanes, total):
    x = load(mixed, pl.ds(0, ROWS), lanes)
    return total + x * x

  total = plan.for_each_chunk(chunk, tpu_plan.zero_chunk())
  return lax.rsqrt(jnp.sum(total, axis=-1, keepdims=True) / plan.work.width + plan.eps)


def _write_stats(plan: Plan, scratch: _Scratch, outputs: _Outputs) -> None:
  """Turns statistics from a slot per lane to a token per lane."""
  for start in range(0, plan.stats_tokens, LANES):
    tokens, slots = pl.ds(start, LANES), slice(0, plan.work.num_slots)
    inverse_rms, logits = (ref[tokens, :].T for ref in (scratch.squares, scratch.dots))
    outputs.inverse_rms[:, tokens] = inverse_rms[slots]
    outputs.logits[:, tokens] = logits[slots]
    top = jnp.max(logits, axis=0, keepdims=True)
    total = jnp.sum(jnp.exp(logits - top), axis=0, keepdims=True)
    outputs.lse[:, tokens] = top + jnp.log(total)
