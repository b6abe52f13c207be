"""The backward kernel of depth attention for TPUs: every source and cotangent is moved once.

As in the forward kernel all N tiles of a tile of tokens lie in on-chip memory, so h is mixed again
where a norm follows it. The cotangents of query and output gain are summed in on-chip memory over
all tiles. Where sources are threaded their cotangents are added to in place.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention import tiles, tpu_plan
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.kernels.depth_attention.tiles import LANES, ROWS, SUBLANES
from resjax.kernels.depth_attention.tpu_bank import BankTiles
from resjax.kernels.depth_attention.tpu_forward import mix, mixed_inverse_rms
from resjax.kernels.depth_attention.tpu_plan import Plan, load, store
from resjax.typing import Array, PyTree


class _Inputs(NamedTuple):
  """Arrays, their specs, or references to tiles of them."""

  query: Any
  out_norm_scale: Any
  stats: Stats
  slots: tuple
  d_out: Any
  d_recent: tuple
  d_bank: Any


class _Outputs(NamedTuple):
  d_recent: tuple
  d_bank: Any
  query: Any
  out_norm_scale: Any


class _Scratch(NamedTuple):
  """On-chip memory.

  Attributes:
    weights, inverse_rms, logits: [tokens of a tile of statistics, LANES], a slot per lane.
    scores: [ROWS, LANES], a slot per lane.
    mixed, d_mixed: [ROWS, D].
    d_bank: tiles of the cotangent of the bank, see `BankTiles`; None without a bank.
    semaphores: of their copies.
  """

  weights: Any
  inverse_rms: Any
  logits: Any
  scores: Any
  mixed: Any
  d_mixed: Any
  d_bank: Any
  semaphores: Any


def backward(
  read: Read, plan: Plan, operands: Operands, stats: Stats, d_out: Array, d_sources: PyTree
) -> Cotangents:
  """Runs the kernel on the rows of one device; see reference.py."""
  inputs = _inputs(read, operands, plan, stats, d_out, d_sources)
  outputs = _output_shapes(plan, operands)
  call = pl.pallas_call(
    partial(_kernel, plan, read.threaded),
    out_shape=(outputs,),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=plan.grid,
      in_specs=(_input_specs(plan, inputs),),
      out_specs=(_output_specs(plan, outputs),),
      scratch_shapes=(_scratch_shapes(plan, read.threaded),),
    ),
    input_output_aliases=_aliases(read, plan, inputs, outputs),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"),
      vmem_limit_bytes=tiles.vmem_limit(plan.work),
    ),
    cost_estimate=_cost(plan, read.threaded, inputs, outputs),
    interpret=read.interpret,
    name="depth_attention_backward",
  )
  (got,) = call(operands.counts, inputs)
  d_bank = None if got.d_bank is None else got.d_bank[:, : plan.work.num_tokens]
  d_scale = None if got.out_norm_scale is None else jnp.sum(got.out_norm_scale, axis=0)
  return Cotangents(d_bank, got.d_recent, jnp.sum(got.query, axis=0), d_scale)


def _inputs(read: Read, operands: Operands, plan: Plan, stats: Stats, d_out, d_sources) -> _Inputs:
  bank, scale, (d_bank, d_recent) = operands.bank, operands.out_norm_scale, d_sources or (None, ())
  if bank is not None:
    # What is copied by hand consists of whole registers.
    rest = (0, -plan.work.num_tokens % ROWS)
    d_bank = jnp.zeros_like(bank) if d_bank is None else d_bank
    d_bank = jnp.pad(d_bank, ((0, 0), rest, (0, 0))) if rest[1] else d_bank
  padded = Stats(*(tpu_plan.pad_tokens(jnp.atleast_2d(s), plan) for s in stats))
  banked = () if bank is None else (bank,) * len(bank)
  return _Inputs(
    tpu_plan.spread_rows(operands.query),
    None if scale is None else tpu_plan.spread_rows(scale),
    padded,
    (*banked, *operands.recent),
    d_out,
    d_recent,
    d_bank,
  )


def _input_specs(plan: Plan, inputs: _Inputs) -> _Inputs:
  tokens, slots = plan.tokens_spec(), plan.stats_spec(plan.work.num_slots)
  return _Inputs(
    plan.row_spec(),
    None if inputs.out_norm_scale is None else plan.row_spec(),
    Stats(slots, slots, plan.stats_spec(1)),
    plan.slot_specs(),
    tokens,
    (tokens,) * len(inputs.d_recent),
    None if inputs.d_bank is None else pl.BlockSpec(memory_space=pl.ANY),
  )


def _output_shapes(plan: Plan, operands: Operands) -> _Outputs:
  def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)

  work, bank = plan.work, None
  tokens = shape(work.num_tokens, work.width, dtype=work.dtype)
  if work.num_banked:
    padded = work.num_tokens + -work.num_tokens % ROWS
    bank = shape(work.num_banked, padded, work.width, dtype=work.dtype)
  row = shape(plan.grid[0] * SUBLANES, work.width)
  return _Outputs(
    (tokens,) * work.num_recent,
    bank,
    row,
    None if operands.out_norm_scale is None else row,
  )


def _output_specs(plan: Plan, outputs: _Outputs) -> _Outputs:
  row = pl.BlockSpec((SUBLANES, plan.work.width), lambda p, i, _: (p, 0))
  return _Outputs(
    (plan.tokens_spec(),) * plan.work.num_recent,
    None if outputs.d_bank is None else pl.BlockSpec(memory_space=pl.ANY),
    row,
    None if outputs.out_norm_scale is None else row,
  )


def _aliases(read: Read, plan: Plan, inputs: _Inputs, outputs: _Outputs) -> dict[int, int]:
  """Which flat input (counts are the first) becomes which flat output."""
  leaves = jax.tree.leaves(inputs)
  first_bank, first_recent = len(leaves), len(leaves) - len(inputs.d_recent)
  aliases = {}
  if inputs.d_bank is not None:
    first_bank, first_recent = first_bank - 1, first_recent - 1
    aliases[1 + first_bank] = len(outputs.d_recent)
  # The interpreter returns what is aliased with the rows past the end of the last tile.
  if not (read.interpret and plan.work.num_tokens % plan.tiles.tokens):
    aliases |= {1 + first_recent + k: k for k in range(len(inputs.d_recent))}
  return aliases


def _scratch_shapes(plan: Plan, threaded: bool) -> _Scratch:
  columns = pltpu.VMEM((plan.stats_tokens, LANES), jnp.float32)
  rows = pltpu.VMEM((ROWS, plan.work.width), jnp.float32)
  d_bank, semaphores = BankTiles.scratch_shapes(plan, threaded)
  scores = pltpu.VMEM((ROWS, LANES), jnp.float32)
  return _Scratch(columns, columns, columns, scores, rows, rows, d_bank, semaphores)


def _cost(plan: Plan, threaded: bool, inputs: _Inputs, outputs: _Outputs) -> pl.CostEstimate:
  tile = plan.work.num_tokens * plan.work.width * jnp.dtype(plan.work.dtype).itemsize
  streams = plan.work.num_slots * (3 if threaded else 2) + 1
  elements = plan.work.num_slots * plan.work.num_tokens * plan.work.width
  return pl.CostEstimate(
    flops=10 * elements,
    transcendentals=plan.work.num_slots * plan.work.num_tokens,
    bytes_accessed=streams * tile + tpu_plan.num_bytes(inputs.stats, outputs.query),
  )


def _kernel(plan: Plan, threaded: bool, counts, inputs: _Inputs, outputs: _Outputs, scratch):
  step = pl.program_id(1)
  tile, place = plan.tile(pl.program_id(0), step), lax.rem(step, plan.tiles_per_stats)
  bank = BankTiles(
    plan, threaded, counts[0], tile, step,
    inputs.d_bank, outputs.d_bank, scratch.d_bank, scratch.semaphores,
  )  # fmt: skip
  bank.begin()
  plan.clear_rows_past_end(tile, [*inputs.slots, inputs.d_out])

  @pl.when(step == 0)
  def _():
    for ref in (outputs.query, outputs.out_norm_scale):
      if ref is not None:
        ref[...] = jnp.zeros_like(ref)

  if plan.work.num_recent:

    @pl.when(counts[1] == 0)
    def _():
      inputs.slots[-1][...] = jnp.zeros_like(inputs.slots[-1])

  pl.when(place == 0)(lambda: _read_stats(plan, inputs.stats, scratch))
  bank.wait_until_read()
  d_slots = (*bank.tiles(), *outputs.d_recent)
  old = (*(bank.tiles() if threaded else ()), *inputs.d_recent)

  def run(rows):
    start = pl.multiple_of(place * plan.tiles.tokens + rows.start, ROWS)
    columns = pl.ds(start, ROWS)
    _d_mixed(plan, counts, inputs, outputs, scratch, rows, columns)
    factors = _d_logits(plan, counts, inputs, scratch, rows, columns)
    _d_sources(plan, counts, inputs, outputs, scratch, factors, (old, d_slots), rows)

  plan.for_each_row_group(run)
  bank.end()


def _read_stats(plan: Plan, stats: Stats, scratch: _Scratch) -> None:
  """Turns statistics from a token per lane to a slot per lane, logits to weights."""
  missing = jnp.zeros((LANES - plan.work.num_slots, LANES), jnp.float32)

  def turn(ref, tokens, rows):
    whole = jnp.concatenate([rows, missing]) if missing.size else rows
    ref[tokens, :] = whole.T

  for start in range(0, plan.stats_tokens, LANES):
    tokens = pl.ds(start, LANES)
    logits = stats.logits[:, tokens]
    weights = jnp.exp(logits - stats.lse[:, tokens])
    turn(scratch.weights, tokens, weights)
    turn(scratch.inverse_rms, tokens, stats.inverse_rms[:, tokens])
    # A slot that does not count has weight 0 and logit -inf.
    turn(scratch.logits, tokens, jnp.where(weights > 0, logits, 0))


def _d_mixed(plan: Plan, counts, inputs, outputs, scratch: _Scratch, rows, columns) -> None:
  """Writes the cotangent of h, through the norm that follows if there is one."""
  scale, d_out, here = inputs.out_norm_scale, inputs.d_out, pl.ds(0, ROWS)
  if scale is None:
    plan.for_each_chunk(
      lambda lanes, _: store(scratch.d_mixed, here, lanes, load(d_out, rows, lanes))
    )
    return
  weights = scratch.weights.at[columns]
  mix(plan, counts, inputs.slots, weights, rows, scratch.mixed, here)
  inverse_rms = mixed_inverse_rms(plan, scratch.mixed)

  def dot(lanes, total):
    d_normed = load(d_out, rows, lanes) * scale[:, lanes]
    return total + d_normed * load(scratch.mixed, here, lanes)

  total = plan.for_each_chunk(dot, tpu_plan.zero_chunk())
  along = jnp.sum(total, axis=-1, keepdims=True) / plan.work.width * inverse_rms * inverse_rms

  def chunk(lanes, _):
    d, x = load(d_out, rows, lanes), load(scratch.mixed, here, lanes)
    store(scratch.d_mixed, here, lanes, inverse_rms * (d * scale[:, lanes] - along * x))
    outputs.out_norm_scale[:, lanes] += jnp.sum(d * x * inverse_rms, axis=0)

  plan.for_each_chunk(chunk)


def _d_logits(plan: Plan, counts, inputs: _Inputs, scratch: _Scratch, rows, columns):
  """Returns the factors of dh, g and -v in the cotangent of a source, a slot per lane."""
  here, every = pl.ds(0, ROWS), slice(None)
  store(scratch.scores, here, every, tpu_plan.zero_chunk())

  def group(slots):
    def chunk(lanes, sums):
      d_mixed = load(scratch.d_mixed, here, lanes)
      pairs = zip(slots, sums, strict=True)
      return [total + d_mixed * load(inputs.slots[slot], rows, lanes) for slot, total in pairs]

    sums = plan.for_each_chunk(chunk, [tpu_plan.zero_chunk() for _ in slots])
    tpu_plan.put_columns(scratch.scores, here, slots, sums)

  plan.for_each_group(counts, group)
  refs = scratch.weights, scratch.inverse_rms, scratch.logits
  weights, inverse_rms, logits = (load(ref, columns, every) for ref in refs)
  scores = load(scratch.scores, here, every)
  mean = jnp.sum(weights * scores, axis=-1, keepdims=True)
  d_dot = weights * (scores - mean) * inverse_rms
  factors = weights, d_dot, d_dot * inverse_rms * logits / plan.work.width
  return [factor.reshape(ROWS, LANES) for factor in factors]


def _d_sources(plan: Plan, counts, inputs, outputs, scratch: _Scratch, factors, d_refs, rows):
  """Writes the cotangents of sources, and adds to that of the query."""
  old, new = d_refs

  def group(slots):
    spread = [[tpu_plan.column(factor, slot) for factor in factors] for slot in slots]

    def chunk(lanes, _):
      d_mixed, query = load(scratch.d_mixed, pl.ds(0, ROWS), lanes), inputs.query[:, lanes]
      d_query = tpu_plan.zero_chunk()
      for slot, (weight, d_dot, shrink) in zip(slots, spread, strict=True):
        x = load(inputs.slots[slot], rows, lanes)
        d_x = weight * d_mixed + d_dot * query - shrink * x
        store(new[slot], rows, lanes, d_x + load(old[slot], rows, lanes) if old else d_x)
        d_query += d_dot * x
      outputs.query[:, lanes] += jnp.sum(d_query, axis=0)

    plan.for_each_chunk(chunk)

  plan.for_each_group(counts, group)
