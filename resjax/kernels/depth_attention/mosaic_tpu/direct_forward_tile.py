"""What the forward kernel of depth attention for TPUs does with one tile of tokens."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from resjax.kernels.depth_attention.mosaic_tpu import direct_plan
from resjax.kernels.depth_attention.mosaic_tpu.direct_plan import Plan, load, store
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS
from resjax.typing import Array


class Inputs(NamedTuple):
  """Arrays, their specs, or references to tiles of them."""

  query: Any
  out_norm_scale: Any
  slots: tuple
  addend: Any


class Outputs(NamedTuple):
  """The same of what is written."""

  out: Any
  running: Any
  inverse_rms: Any
  logits: Any
  lse: Any


class Scratch(NamedTuple):
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


def kernel(plan: Plan, counts, inputs: Inputs, outputs: Outputs, scratch: Scratch):
  """One tile: logits, softmax, output; every so often a tile of statistics."""
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


def _prepare_last(plan: Plan, counts, inputs: Inputs, outputs: Outputs) -> None:
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


def _dot(plan: Plan, counts, inputs: Inputs, scratch: Scratch, rows, columns) -> None:
  """Writes |v|² and g · v of every source to its lane."""
  for ref in (scratch.squares, scratch.dots):
    store(ref, columns, slice(None), direct_plan.zero_chunk())

  def group(slots):
    def chunk(lanes, sums):
      query, new = inputs.query[:, lanes], []
      for slot, (square, dot) in zip(slots, sums, strict=True):
        x = load(inputs.slots[slot], rows, lanes)
        new.append((square + x * x, dot + x * query))
      return new

    zero = direct_plan.zero_chunk()
    sums = plan.for_each_chunk(chunk, [(zero, zero) for _ in slots])
    squares, dots = zip(*sums, strict=True)
    direct_plan.put_columns(scratch.squares, columns, slots, squares)
    direct_plan.put_columns(scratch.dots, columns, slots, dots)

  plan.for_each_group(counts, group)


def _softmax(plan: Plan, counts, scratch: Scratch, first) -> None:
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


def _read(plan: Plan, counts, inputs: Inputs, outputs: Outputs, scratch: Scratch, rows) -> None:
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
    spread = [direct_plan.column(weights, slot) for slot in slots]
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

  total = plan.for_each_chunk(chunk, direct_plan.zero_chunk())
  return lax.rsqrt(jnp.sum(total, axis=-1, keepdims=True) / plan.work.width + plan.eps)


def _write_stats(plan: Plan, scratch: Scratch, outputs: Outputs) -> None:
  """Turns statistics from a slot per lane to a token per lane."""
  for start in range(0, plan.stats_tokens, LANES):
    tokens, slots = pl.ds(start, LANES), slice(0, plan.work.num_slots)
    inverse_rms, logits = (ref[tokens, :].T for ref in (scratch.squares, scratch.dots))
    outputs.inverse_rms[:, tokens] = inverse_rms[slots]
    outputs.logits[:, tokens] = logits[slots]
    top = jnp.max(logits, axis=0, keepdims=True)
    total = jnp.sum(jnp.exp(logits - top), axis=0, keepdims=True)
    outputs.lse[:, tokens] = top + jnp.log(total)
