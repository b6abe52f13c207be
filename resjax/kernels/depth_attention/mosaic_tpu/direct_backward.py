"""The reverse kernel of the direct read for TPUs: every source and cotangent is moved once.

As in the forward kernel, all N rows of the tokens of a tile are in on-chip memory. If a norm
follows the read, h is mixed again. The cotangents of query and output gain are summed in on-chip
memory over all tiles. If sources are threaded, their cotangents are added to in place.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention.mosaic_tpu import bank, direct_plan
from resjax.kernels.depth_attention.mosaic_tpu.bank import BankScratch, BankTiles
from resjax.kernels.depth_attention.mosaic_tpu.call import launch, on_one_device, tiled
from resjax.kernels.depth_attention.mosaic_tpu.direct_forward import mix, mixed_inverse_rms
from resjax.kernels.depth_attention.mosaic_tpu.direct_plan import (
  DirectPlan,
  load,
  pad_tokens,
  put_columns,
  spread_rows,
  store,
  zero_chunk,
)
from resjax.kernels.depth_attention.mosaic_tpu.loops import Span
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS, SUBLANES, TpuTiles
from resjax.kernels.depth_attention.operands import Cotangents, Field, Operands, Read, Ref, Stats
from resjax.typing import Array, PyTree


class _Inputs(NamedTuple):
  query: Field
  out_norm_scale: Field
  stats: Stats
  slots: tuple[Field, ...]
  d_out: Field
  d_recent: tuple[Field, ...]
  d_bank: Field


class _Outputs(NamedTuple):
  d_recent: tuple[Field, ...]
  d_bank: Field
  query: Field
  out_norm_scale: Field


class _Scratch(NamedTuple):
  """On-chip memory.

  Attributes:
    weights, inverse_rms, logits: [tokens of a tile of statistics, LANES], a slot per lane.
    scores: [ROWS, LANES], a slot per lane.
    mixed, d_mixed: [ROWS, D].
    bank: tiles of the cotangent of the bank.
  """

  weights: Ref
  inverse_rms: Ref
  logits: Ref
  scores: Ref
  mixed: Ref
  d_mixed: Ref
  bank: BankScratch


@on_one_device
def backward(
  read: Read,
  operands: Operands,
  stats: Stats,
  d_out: Array,
  d_sources: PyTree,
  *,
  tile_sizes: TpuTiles | None = None,
) -> Cotangents:
  """Runs the reverse pass with given or chosen tile sizes, see reference/direct.py."""
  plan = DirectPlan.of("backward", read, operands, tile_sizes)
  sizes, tokens, (d_bank, d_recent) = plan.sizes, plan.tokens_spec(), d_sources or (None, ())
  inputs = _Inputs(
    tiled(spread_rows(operands.query), plan.whole_spec()),
    tiled(spread_rows(operands.out_norm_scale), plan.whole_spec()),
    Stats(
      *(tiled(pad_tokens(s, plan), plan.stats_spec(len(s))) for s in map(jnp.atleast_2d, stats))
    ),
    plan.slots(operands),
    tiled(d_out, tokens),
    tuple(tiled(d, tokens) for d in d_recent),
    bank.input_of(plan, operands.bank, d_bank),
  )
  sums_shape = jax.ShapeDtypeStruct((plan.grid[0] * SUBLANES, sizes.width), jnp.float32)
  sums = tiled(sums_shape, pl.BlockSpec((SUBLANES, sizes.width), lambda p, i, _: (p, 0)))
  outputs = _Outputs(
    (tiled(plan.source_shape(), tokens),) * sizes.num_recent,
    bank.output_of(plan),
    sums,
    None if operands.out_norm_scale is None else sums,
  )
  columns = pltpu.VMEM((plan.stats_tokens, LANES), jnp.float32)
  rows = pltpu.VMEM((ROWS, sizes.width), jnp.float32)
  scores = pltpu.VMEM((ROWS, LANES), jnp.float32)
  written = launch(
    read,
    partial(_kernel, plan),
    plan,
    "depth_attention_backward",
    operands.counts,
    inputs=inputs,
    outputs=outputs,
    cost=_cost(plan),
    scratch=_Scratch(columns, columns, columns, scores, rows, rows, bank.scratch_shapes(plan)),
    updates=plan.updates(read.interpret),
  )
  d_bank = None if written.d_bank is None else written.d_bank[:, : sizes.num_tokens]
  d_scale = None if written.out_norm_scale is None else jnp.sum(written.out_norm_scale, axis=0)
  return Cotangents(d_bank, written.d_recent, jnp.sum(written.query, axis=0), d_scale)


def _cost(plan: DirectPlan) -> pl.CostEstimate:
  sizes, slots = plan.sizes, plan.sizes.num_slots
  arrays = slots * (3 if sizes.threaded else 2) + 1
  numbers = (2 * slots + 1) * plan.padded_tokens + plan.grid[0] * SUBLANES * sizes.width
  return pl.CostEstimate(
    flops=10 * slots * sizes.num_tokens * sizes.width,
    transcendentals=slots * sizes.num_tokens,
    bytes_accessed=arrays * sizes.num_tokens * sizes.width * plan.dtype.itemsize + 4 * numbers,
  )


def _kernel(
  plan: DirectPlan, counts: Ref, inputs: _Inputs, outputs: _Outputs, scratch: _Scratch
) -> None:
  """Turns the statistics of one tile, then writes the cotangents of one group of rows at a time."""
  step = pl.program_id(1)
  tile, place = plan.tile(pl.program_id(0), step), lax.rem(step, plan.tiles_per_stats)
  bank_tiles = BankTiles(plan, counts[0], tile, step, inputs.d_bank, outputs.d_bank, scratch.bank)
  bank_tiles.begin()
  _clear(plan, counts, tile, step, inputs, outputs)
  pl.when(place == 0)(lambda: _read_stats(plan, inputs.stats, scratch))
  bank_tiles.wait_until_read()
  new = (*bank_tiles.tiles(), *outputs.d_recent)
  old = (*bank_tiles.tiles(), *inputs.d_recent) if plan.sizes.threaded else ()

  def run(rows: Span) -> None:
    start = pl.multiple_of(place * plan.tiles.tokens + rows.start, ROWS)
    columns = pl.ds(start, ROWS)
    _d_mixed(plan, counts, inputs, outputs, scratch, rows, columns)
    factors = _factors(plan, counts, inputs, scratch, rows, columns)
    _d_sources(plan, counts, inputs, outputs, scratch, factors, old, new, rows)

  plan.for_each_row_group(run)
  bank_tiles.end()


def _clear(
  plan: DirectPlan, counts: Ref, tile: Array, step: Array, inputs: _Inputs, outputs: _Outputs
) -> None:
  """Zeroes the sums over tokens at the first tile, and all that must not enter them."""
  plan.clear_rows_past_end(tile, [*inputs.slots, inputs.d_out])

  @pl.when(step == 0)
  def _() -> None:
    for ref in (outputs.query, outputs.out_norm_scale):
      if ref is not None:
        ref[...] = jnp.zeros_like(ref)

  if plan.sizes.num_recent:

    @pl.when(counts[1] == 0)
    def _() -> None:
      inputs.slots[-1][...] = jnp.zeros_like(inputs.slots[-1])


def _read_stats(plan: DirectPlan, stats: Stats, scratch: _Scratch) -> None:
  """Turns statistics from a token per lane to a slot per lane, and logits into weights."""
  missing = jnp.zeros((LANES - plan.sizes.num_slots, LANES), jnp.float32)

  def turn(ref: Ref, tokens: Span, rows: Array) -> None:
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


def _d_mixed(
  plan: DirectPlan,
  counts: Ref,
  inputs: _Inputs,
  outputs: _Outputs,
  scratch: _Scratch,
  rows: Span,
  columns: Span,
) -> None:
  """Writes the cotangent of h, taken through the norm that follows if there is one."""
  scale, d_out, here = inputs.out_norm_scale, inputs.d_out, pl.ds(0, ROWS)
  if scale is None:
    plan.for_each_chunk(
      lambda lanes, _: store(scratch.d_mixed, here, lanes, load(d_out, rows, lanes))
    )
    return
  weights = scratch.weights.at[columns]
  mix(plan, counts, inputs.slots, weights, rows, scratch.mixed, here)
  inverse_rms = mixed_inverse_rms(plan, scratch.mixed)

  def dot(lanes: Span, total: Array) -> Array:
    d_normed = load(d_out, rows, lanes) * scale[:, lanes]
    return total + d_normed * load(scratch.mixed, here, lanes)

  total = plan.for_each_chunk(dot, zero_chunk())
  along = jnp.sum(total, axis=-1, keepdims=True) / plan.sizes.width * inverse_rms * inverse_rms

  def chunk(lanes: Span, _: None) -> None:
    d, x = load(d_out, rows, lanes), load(scratch.mixed, here, lanes)
    store(scratch.d_mixed, here, lanes, inverse_rms * (d * scale[:, lanes] - along * x))
    outputs.out_norm_scale[:, lanes] += jnp.sum(d * x * inverse_rms, axis=0)

  plan.for_each_chunk(chunk)


def _factors(
  plan: DirectPlan,
  counts: Ref,
  inputs: _Inputs,
  scratch: _Scratch,
  rows: Span,
  columns: Span,
) -> list[Array]:
  """Returns the factors of dh, g and −v in the cotangents of sources, [ROWS, LANES], by slot."""
  here, every = pl.ds(0, ROWS), slice(None)
  store(scratch.scores, here, every, zero_chunk())

  def group(slots: range) -> None:
    def chunk(lanes: Span, sums: list[Array]) -> list[Array]:
      d_mixed = load(scratch.d_mixed, here, lanes)
      pairs = zip(slots, sums, strict=True)
      return [total + d_mixed * load(inputs.slots[slot], rows, lanes) for slot, total in pairs]

    sums = plan.for_each_chunk(chunk, [zero_chunk() for _ in slots])
    put_columns(scratch.scores, here, slots, sums)

  plan.for_each_group(counts, group)
  refs = scratch.weights, scratch.inverse_rms, scratch.logits
  weights, inverse_rms, logits = (load(ref, columns, every) for ref in refs)
  scores = load(scratch.scores, here, every)
  mean = jnp.sum(weights * scores, axis=-1, keepdims=True)
  d_dot = weights * (scores - mean) * inverse_rms
  factors = weights, d_dot, d_dot * inverse_rms * logits / plan.sizes.width
  return [factor.reshape(ROWS, LANES) for factor in factors]


def _d_sources(
  plan: DirectPlan,
  counts: Ref,
  inputs: _Inputs,
  outputs: _Outputs,
  scratch: _Scratch,
  factors: list[Array],
  old: tuple[Ref, ...],
  new: tuple[Ref, ...],
  rows: Span,
) -> None:
  """Writes the cotangents of sources, the old ones added; adds to the cotangent of the query."""

  def group(slots: range) -> None:
    spread = [[direct_plan.column(factor, slot) for factor in factors] for slot in slots]

    def chunk(lanes: Span, _: None) -> None:
      d_mixed, query = load(scratch.d_mixed, pl.ds(0, ROWS), lanes), inputs.query[:, lanes]
      d_query = zero_chunk()
      for slot, (weight, d_dot, shrink) in zip(slots, spread, strict=True):
        x = load(inputs.slots[slot], rows, lanes)
        d_x = weight * d_mixed + d_dot * query - shrink * x
        store(new[slot], rows, lanes, d_x + load(old[slot], rows, lanes) if old else d_x)
        d_query += d_dot * x
      outputs.query[:, lanes] += jnp.sum(d_query, axis=0)

    plan.for_each_chunk(chunk)

  plan.for_each_group(counts, group)
