"""What the backward kernel of depth attention for TPUs does with one tile of tokens."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from resjax.kernels.depth_attention.mosaic_tpu import direct_plan
from resjax.kernels.depth_attention.mosaic_tpu.bank import BankTiles
from resjax.kernels.depth_attention.mosaic_tpu.direct_forward_tile import mix, mixed_inverse_rms
from resjax.kernels.depth_attention.mosaic_tpu.direct_plan import Plan, load, store
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS
from resjax.kernels.depth_attention.operands import Stats


class Inputs(NamedTuple):
  """Arrays, their specs, or references to tiles of them."""

  query: Any
  out_norm_scale: Any
  stats: Stats
  slots: tuple
  d_out: Any
  d_recent: tuple
  d_bank: Any


class Outputs(NamedTuple):
  """The same of what is written."""

  d_recent: tuple
  d_bank: Any
  query: Any
  out_norm_scale: Any


class Scratch(NamedTuple):
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


def kernel(plan: Plan, threaded: bool, counts, inputs: Inputs, outputs: Outputs, scratch):
  """One tile: its statistics, then group by group of rows the cotangents."""
  step = pl.program_id(1)
  tile, place = plan.tile(pl.program_id(0), step), lax.rem(step, plan.tiles_per_stats)
  bank = BankTiles(
    plan, threaded, counts[0], tile, step,
    inputs.d_bank, outputs.d_bank, scratch.d_bank, scratch.semaphores,
  )  # fmt: skip
  bank.begin()
  _clear(plan, counts, tile, step, inputs, outputs)
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


def _clear(plan: Plan, counts, tile, step, inputs: Inputs, outputs: Outputs) -> None:
  """Zeroes sums over tokens before the first tile, and what must not enter them."""
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


def _read_stats(plan: Plan, stats: Stats, scratch: Scratch) -> None:
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


def _d_mixed(plan: Plan, counts, inputs, outputs, scratch: Scratch, rows, columns) -> None:
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

  total = plan.for_each_chunk(dot, direct_plan.zero_chunk())
  along = jnp.sum(total, axis=-1, keepdims=True) / plan.work.width * inverse_rms * inverse_rms

  def chunk(lanes, _):
    d, x = load(d_out, rows, lanes), load(scratch.mixed, here, lanes)
    store(scratch.d_mixed, here, lanes, inverse_rms * (d * scale[:, lanes] - along * x))
    outputs.out_norm_scale[:, lanes] += jnp.sum(d * x * inverse_rms, axis=0)

  plan.for_each_chunk(chunk)


def _d_logits(plan: Plan, counts, inputs: Inputs, scratch: Scratch, rows, columns):
  """Returns the factors of dh, g and -v in the cotangent of a source, a slot per lane."""
  here, every = pl.ds(0, ROWS), slice(None)
  store(scratch.scores, here, every, direct_plan.zero_chunk())

  def group(slots):
    def chunk(lanes, sums):
      d_mixed = load(scratch.d_mixed, here, lanes)
      pairs = zip(slots, sums, strict=True)
      return [total + d_mixed * load(inputs.slots[slot], rows, lanes) for slot, total in pairs]

    sums = plan.for_each_chunk(chunk, [direct_plan.zero_chunk() for _ in slots])
    direct_plan.put_columns(scratch.scores, here, slots, sums)

  plan.for_each_group(counts, group)
  refs = scratch.weights, scratch.inverse_rms, scratch.logits
  weights, inverse_rms, logits = (load(ref, columns, every) for ref in refs)
  scores = load(scratch.scores, here, every)
  mean = jnp.sum(weights * scores, axis=-1, keepdims=True)
  d_dot = weights * (scores - mean) * inverse_rms
  factors = weights, d_dot, d_dot * inverse_rms * logits / plan.work.width
  return [factor.reshape(ROWS, LANES) for factor in factors]


def _d_sources(plan: Plan, counts, inputs, outputs, scratch: Scratch, factors, d_refs, rows):
  """Writes the cotangents of sources, and adds to that of the query."""
  old, new = d_refs

  def group(slots):
    spread = [[direct_plan.column(factor, slot) for factor in factors] for slot in slots]

    def chunk(lanes, _):
      d_mixed, query = load(scratch.d_mixed, pl.ds(0, ROWS), lanes), inputs.query[:, lanes]
      d_query = direct_plan.zero_chunk()
      for slot, (weight, d_dot, shrink) in zip(slots, spread, strict=True):
        x = load(inputs.slots[slot], rows, lanes)
        d_x = weight * d_mixed + d_dot * query - shrink * x
        store(new[slot], rows, lanes, d_x + load(old[slot], rows, lanes) if old else d_x)
        d_query += d_dot * x
      outputs.query[:, lanes] += jnp.sum(d_query, axis=0)

    plan.for_each_chunk(chunk)

  plan.for_each_group(counts, group)
