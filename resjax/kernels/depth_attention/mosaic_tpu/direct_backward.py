"""The reverse kernel of the direct read for TPUs: every source and cotangent is moved once.

As in the forward kernel, all N rows of the tokens of a tile are in on-chip memory. If a norm
follows the read, h is mixed again. The cotangents of query and output gain are summed in on-chip
memory over all tiles. If sources are threaded, their cotangents are added to in place.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array, PyTree
from resjax.kernels.depth_attention.mosaic_tpu import direct_plan, source_cotangents
from resjax.kernels.depth_attention.mosaic_tpu import direct_plan as steps
from resjax.kernels.depth_attention.mosaic_tpu.direct_forward import DirectKernel
from resjax.kernels.depth_attention.mosaic_tpu.direct_plan import DirectPlan
from resjax.kernels.depth_attention.mosaic_tpu.tiles import TpuTiles
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.kernels.mosaic_tpu import ROWS, SUBLANES, Span, call
from resjax.kernels.operation import LANES, Field, Ref


class _Inputs(NamedTuple):
  query: Field
  out_norm_scale: Field
  stats: Stats
  slots: tuple[Field, ...]
  d_out: Field
  d_sources: source_cotangents.SourceCotangents


class _Scratch(NamedTuple):
  """Buffers in VMEM.

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
  bank: source_cotangents.BankScratch


@call.on_one_device
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
  sizes = plan.sizes
  inputs = _Inputs(
    call.tiled(steps.spread_rows(operands.query), plan.whole_spec()),
    call.tiled(steps.spread_rows(operands.out_norm_scale), plan.whole_spec()),
    Stats(*(plan.padded_stats(jnp.atleast_2d(x)) for x in stats)),
    plan.slots(operands),
    call.tiled(d_out, plan.tokens_spec()),
    source_cotangents.inputs_of(plan, operands, d_sources),
  )
  sums_shape = jax.ShapeDtypeStruct((plan.grid[0] * SUBLANES, sizes.width), jnp.float32)
  sums = call.tiled(sums_shape, pl.BlockSpec((SUBLANES, sizes.width), lambda p, i, _: (p, 0)))
  outputs = Cotangents(
    *source_cotangents.outputs_of(plan),
    sums,
    None if operands.out_norm_scale is None else sums,
  )
  slots = sizes.num_slots
  numbers = (2 * slots + 1) * plan.padded_tokens + sums_shape.size
  columns = pltpu.VMEM((plan.stats_tokens, LANES), jnp.float32)
  rows = pltpu.VMEM((ROWS, sizes.width), jnp.float32)
  scores = pltpu.VMEM((ROWS, LANES), jnp.float32)
  written = call.launch(
    read,
    _Kernel,
    plan,
    "depth_attention_backward",
    operands.counts,
    inputs=inputs,
    outputs=outputs,
    cost=plan.cost(10 * slots, slots, (2 + read.threaded) * slots + 1, numbers),
    scratch=_Scratch(
      columns, columns, columns, scores, rows, rows, source_cotangents.scratch_shapes(plan)
    ),
    updates=plan.updates(read.interpret),
  )
  d_scale = None if written.out_norm_scale is None else jnp.sum(written.out_norm_scale, axis=0)
  d_query = jnp.sum(written.query, axis=0)
  found = source_cotangents.without_padding(plan, written)
  return found._replace(query=d_query, out_norm_scale=d_scale)


class _Kernel(DirectKernel):
  inputs: _Inputs
  outputs: Cotangents
  scratch: _Scratch

  def run(self) -> None:
    """Turns the statistics of a tile, then writes cotangents, one group of rows at a time."""
    plan, inputs, outputs, step = self.plan, self.inputs, self.outputs, pl.program_id(1)
    tile, place = plan.tile(pl.program_id(0), step), lax.rem(step, plan.tiles_per_stats)
    refs = inputs.d_sources, outputs, self.scratch.bank
    tiles = source_cotangents.CotangentTiles(plan, self.counts[0], tile, step, *refs)
    tiles.begin()
    self._clear(tile, step)
    pl.when(place == 0)(self._read_stats)
    tiles.wait_until_read()
    old, new = tiles.old(), tiles.new()

    def run(rows: Span) -> None:
      start = pl.multiple_of(place * plan.tiles.tokens + rows.start, ROWS)
      columns = pl.ds(start, ROWS)
      self._write_d_mixed(rows, columns)
      self._write_d_sources(self._factors(rows, columns), old, new, rows)

    plan.for_each_row_group(run)
    tiles.end()

  def _clear(self, tile: Array, step: Array) -> None:
    """Zeroes the sums over tokens at the first tile, and all that must not enter them."""
    slots, sums = self.inputs.slots, (self.outputs.query, self.outputs.out_norm_scale)
    self.plan.clear_rows_past_end(tile, [*slots, self.inputs.d_out])

    @pl.when(step == 0)
    def _() -> None:
      for ref in sums:
        if ref is not None:
          ref[...] = jnp.zeros_like(ref)

    if self.plan.sizes.num_recent:

      @pl.when(self.counts[1] == 0)
      def _() -> None:
        slots[-1][...] = jnp.zeros_like(slots[-1])

  def _read_stats(self) -> None:
    """Turns statistics from a token per lane to a slot per lane, and logits into weights."""
    stats, scratch = self.inputs.stats, self.scratch
    missing = jnp.zeros((LANES - self.plan.sizes.num_slots, LANES), jnp.float32)

    def turn(ref: Ref, tokens: Span, rows: Array) -> None:
      whole = jnp.concatenate([rows, missing]) if missing.size else rows
      ref[tokens, :] = whole.T

    for start in range(0, self.plan.stats_tokens, LANES):
      tokens = pl.ds(start, LANES)
      logits = stats.logits[:, tokens]
      weights = jnp.exp(logits - stats.lse[:, tokens])
      turn(scratch.weights, tokens, weights)
      turn(scratch.inverse_rms, tokens, stats.inverse_rms[:, tokens])
      # A slot that does not count has weight 0 and logit -inf.
      turn(scratch.logits, tokens, jnp.where(weights > 0, logits, 0))

  def _write_d_mixed(self, rows: Span, columns: Span) -> None:
    """Writes the cotangent of h, taken through the norm that follows if there is one."""
    plan, here, d_out = self.plan, pl.ds(0, ROWS), self.inputs.d_out
    scale = self.inputs.out_norm_scale
    mixed, d_mixed = self.scratch.mixed, self.scratch.d_mixed
    if scale is None:
      plan.for_each_chunk(
        lambda lanes, _: steps.store(d_mixed, here, lanes, steps.load(d_out, rows, lanes))
      )
      return
    self.mix(self.scratch.weights.at[columns], rows, mixed, here)
    inverse_rms = self.inverse_rms(mixed)

    def dot(lanes: Span, total: Array) -> Array:
      d_normed = steps.load(d_out, rows, lanes) * scale[:, lanes]
      return total + d_normed * steps.load(mixed, here, lanes)

    total = plan.for_each_chunk(dot, steps.zero_chunk())
    along = jnp.sum(total, axis=-1, keepdims=True) / plan.sizes.width * inverse_rms * inverse_rms

    def chunk(lanes: Span, _: None) -> None:
      d, x = steps.load(d_out, rows, lanes), steps.load(mixed, here, lanes)
      steps.store(d_mixed, here, lanes, inverse_rms * (d * scale[:, lanes] - along * x))
      self.outputs.out_norm_scale[:, lanes] += jnp.sum(d * x * inverse_rms, axis=0)

    plan.for_each_chunk(chunk)

  def _factors(self, rows: Span, columns: Span) -> list[Array]:
    """Returns the factors of dh, g and −v in the cotangents of sources, [ROWS, LANES], by slot."""
    plan, scratch, here, every = self.plan, self.scratch, pl.ds(0, ROWS), slice(None)
    steps.store(scratch.scores, here, every, steps.zero_chunk())

    def group(slots: range) -> None:
      def chunk(lanes: Span, sums: list[Array]) -> list[Array]:
        d_mixed, sources = steps.load(scratch.d_mixed, here, lanes), self.inputs.slots
        pairs = zip(slots, sums, strict=True)
        return [total + d_mixed * steps.load(sources[slot], rows, lanes) for slot, total in pairs]

      sums = plan.for_each_chunk(chunk, [steps.zero_chunk() for _ in slots])
      steps.put_columns(scratch.scores, here, slots, sums)

    plan.for_each_group(self.counts, group)
    refs = scratch.weights, scratch.inverse_rms, scratch.logits
    weights, inverse_rms, logits = (steps.load(ref, columns, every) for ref in refs)
    scores = steps.load(scratch.scores, here, every)
    mean = jnp.sum(weights * scores, axis=-1, keepdims=True)
    d_dot = weights * (scores - mean) * inverse_rms
    factors = weights, d_dot, d_dot * inverse_rms * logits / plan.sizes.width
    return [factor.reshape(ROWS, LANES) for factor in factors]

  def _write_d_sources(
    self, factors: list[Array], old: tuple[Ref, ...], new: tuple[Ref, ...], rows: Span
  ) -> None:
    """Writes the cotangents of sources, the old ones added; adds to the cotangent of the query."""
    inputs, d_mixed_ref, total = self.inputs, self.scratch.d_mixed, self.outputs.query

    def group(slots: range) -> None:
      spread = [[direct_plan.column(factor, slot) for factor in factors] for slot in slots]

      def chunk(lanes: Span, _: None) -> None:
        d_mixed, query = steps.load(d_mixed_ref, pl.ds(0, ROWS), lanes), inputs.query[:, lanes]
        d_query = steps.zero_chunk()
        for slot, (weight, d_dot, shrink) in zip(slots, spread, strict=True):
          x = steps.load(inputs.slots[slot], rows, lanes)
          d_x = weight * d_mixed + d_dot * query - shrink * x
          steps.store(
            new[slot], rows, lanes, d_x + steps.load(old[slot], rows, lanes) if old else d_x
          )
          d_query += d_dot * x
        total[:, lanes] += jnp.sum(d_query, axis=0)

      self.plan.for_each_chunk(chunk)

    self.plan.for_each_group(self.counts, group)
