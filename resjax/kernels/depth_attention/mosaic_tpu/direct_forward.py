"""The forward kernel of the direct read for TPUs: every source is loaded once.

All N rows of the tokens of a tile are in on-chip memory. A first sweep over them gives the logits,
a second one mixes. So nothing is rescaled, and only the output and two numbers per source and token
go back to memory.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array
from resjax.kernels.depth_attention.mosaic_tpu import direct_plan
from resjax.kernels.depth_attention.mosaic_tpu import direct_plan as steps
from resjax.kernels.depth_attention.mosaic_tpu.direct_plan import DirectPlan
from resjax.kernels.depth_attention.mosaic_tpu.tiles import TpuTiles
from resjax.kernels.depth_attention.operands import Operands, Read, Stats
from resjax.kernels.mosaic_tpu import ROWS, SUBLANES, Span, call
from resjax.kernels.operation import LANES, Field, Ref


class _Inputs(NamedTuple):
  query: Field
  out_norm_scale: Field
  slots: tuple[Field, ...]
  addend: Field


class _Outputs(NamedTuple):
  out: Field
  running: Field
  inverse_rms: Field
  logits: Field
  lse: Field


class _Scratch(NamedTuple):
  """Buffers in VMEM.

  Attributes:
    squares, dots: [tokens of a tile of statistics, LANES], a slot per lane: |v|² and g · v at
      first, later inverse RMS and logits.
    weights: [tokens of a tile, LANES], a slot per lane.
    mixed: [ROWS, D].
  """

  squares: Ref
  dots: Ref
  weights: Ref
  mixed: Ref


@call.on_one_device
def forward(
  read: Read, operands: Operands, *, tile_sizes: TpuTiles | None = None
) -> tuple[Array, Array | None, Stats]:
  """Runs the forward pass with given or chosen tile sizes, see reference/direct.py."""
  plan = DirectPlan.of("forward", read, operands, tile_sizes)
  source, tokens, slots = plan.source_shape(), plan.tokens_spec(), plan.sizes.num_slots
  per_slot, per_token = (
    call.tiled(jax.ShapeDtypeStruct((n, plan.padded_tokens), jnp.float32), plan.stats_spec(n))
    for n in (slots, 1)
  )
  inputs = _Inputs(
    call.tiled(steps.spread_rows(operands.query), plan.whole_spec()),
    call.tiled(steps.spread_rows(operands.out_norm_scale), plan.whole_spec()),
    plan.slots(operands),
    call.tiled(operands.addend, tokens),
  )
  outputs = _Outputs(
    call.tiled(source, tokens),
    call.tiled(source if read.adds else None, tokens),
    per_slot,
    per_slot,
    per_token,
  )
  stats_size = (2 * slots + 1) * plan.padded_tokens
  gains_size = (1 + plan.sizes.normed) * SUBLANES * plan.sizes.width
  columns = pltpu.VMEM((plan.stats_tokens, LANES), jnp.float32)
  weights = pltpu.VMEM((plan.tiles.tokens, LANES), jnp.float32)
  mixed = pltpu.VMEM((ROWS, plan.sizes.width), jnp.float32)
  written = call.launch(
    read,
    _Kernel,
    plan,
    "depth_attention_forward",
    operands.counts,
    inputs=inputs,
    outputs=outputs,
    cost=plan.cost(6 * slots, 2 * slots, slots + 1 + 2 * read.adds, stats_size + gains_size),
    scratch=_Scratch(columns, columns, weights, mixed),
  )
  end = plan.sizes.num_tokens
  stats = Stats(written.inverse_rms[:, :end], written.logits[:, :end], written.lse[0, :end])
  return written.out, written.running, stats


class DirectKernel(call.TileKernel[DirectPlan, Any, Any, Any]):
  """What both kernels of the direct read do with a tile."""

  def mix(self, weights: Ref, rows: Span, target: Ref, target_rows: Span) -> None:
    """Writes h = Σ_n p_n v_n of a group of rows; adds one group of slots at a time to `target`."""
    sizes, slot_refs = self.plan.sizes, self.inputs.slots
    if sizes.num_banked:
      target[target_rows, :] = jnp.zeros((ROWS, sizes.width), target.dtype)

    def group(slots: range) -> None:
      spread = [direct_plan.column(weights, slot) for slot in slots]
      adds = sizes.num_banked or slots.start > 0

      def chunk(lanes: Span, _: None) -> None:
        total: Any = steps.load(target, target_rows, lanes) if adds else 0.0
        for slot, weight in zip(slots, spread, strict=True):
          total += weight * steps.load(slot_refs[slot], rows, lanes)
        steps.store(target, target_rows, lanes, total)

      self.plan.for_each_chunk(chunk)

    self.plan.for_each_group(self.counts, group)

  def inverse_rms(self, mixed: Ref) -> Array:
    """Returns 1 / RMS(h) of every row of [ROWS, D], as [ROWS / 8, 8, 1]."""

    def chunk(lanes: Span, total: Array) -> Array:
      x = steps.load(mixed, pl.ds(0, ROWS), lanes)
      return total + x * x

    total = self.plan.for_each_chunk(chunk, steps.zero_chunk())
    squares = jnp.sum(total, axis=-1, keepdims=True) / self.plan.sizes.width
    return lax.rsqrt(squares + self.plan.out_norm_eps)


class _Kernel(DirectKernel):
  inputs: _Inputs
  outputs: _Outputs
  scratch: _Scratch

  def run(self) -> None:
    """Reads one tile; after the last tile of a tile of statistics, writes these too."""
    plan, step = self.plan, pl.program_id(1)
    place = lax.rem(step, plan.tiles_per_stats)
    if plan.sizes.num_recent:
      self._prepare_last()

    # In each of the three sweeps over the tile all rows are independent, which hides latencies.
    first = pl.multiple_of(place * plan.tiles.tokens, ROWS)
    plan.for_each_row_group(lambda rows: self._dot(rows, pl.ds(first + rows.start, ROWS)))
    self._softmax(first)
    plan.for_each_row_group(self._read)

    @pl.when((place == plan.tiles_per_stats - 1) | (step == plan.grid[1] - 1))
    def _() -> None:
      self._write_stats()

  def _prepare_last(self) -> None:
    """Adds the addend to the last source; writes zeros over a last source that does not count."""
    last, addend, running = self.inputs.slots[-1], self.inputs.addend, self.outputs.running
    counted = self.counts[1] > 0
    if addend is not None:

      def add(rows: Span) -> None:
        def chunk(lanes: Span, _: None) -> None:
          steps.store(
            running, rows, lanes, steps.load(last, rows, lanes) + steps.load(addend, rows, lanes)
          )
          last[rows, lanes] = running[rows, lanes]

        self.plan.for_each_chunk(chunk)

      self.plan.for_each_row_group(add)

    @pl.when(jnp.logical_not(counted))
    def _() -> None:
      last[...] = jnp.zeros_like(last)

  def _dot(self, rows: Span, columns: Span) -> None:
    """Writes |v|² and g · v of every source to its lane."""
    inputs, scratch = self.inputs, self.scratch
    for ref in (scratch.squares, scratch.dots):
      steps.store(ref, columns, slice(None), steps.zero_chunk())

    def group(slots: range) -> None:
      def chunk(lanes: Span, sums: list) -> list:
        query, new = inputs.query[:, lanes], []
        for slot, (square, dot) in zip(slots, sums, strict=True):
          x = steps.load(inputs.slots[slot], rows, lanes)
          new.append((square + x * x, dot + x * query))
        return new

      zero = steps.zero_chunk()
      sums = self.plan.for_each_chunk(chunk, [(zero, zero) for _ in slots])
      squares, dots = zip(*sums, strict=True)
      steps.put_columns(scratch.squares, columns, slots, squares)
      steps.put_columns(scratch.dots, columns, slots, dots)

    self.plan.for_each_group(self.counts, group)

  def _softmax(self, first: Array) -> None:
    """Turns squares into inverse RMS and dot products into logits; writes the weights."""
    plan, scratch = self.plan, self.scratch
    size = min(plan.tiles.tokens, LANES)
    valid = plan.valid_lanes(self.counts, size)
    for start in range(0, plan.tiles.tokens, size):
      rows = pl.ds(pl.multiple_of(first + start, ROWS), size)
      inverse_rms = lax.rsqrt(scratch.squares[rows, :] / plan.sizes.width + plan.eps)
      logits = jnp.where(valid, scratch.dots[rows, :] * inverse_rms, -jnp.inf)
      scratch.squares[rows, :] = inverse_rms
      scratch.dots[rows, :] = logits
      weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
      total = jnp.sum(weights, axis=-1, keepdims=True)
      scratch.weights[pl.ds(start, size), :] = weights / total

  def _read(self, rows: Span) -> None:
    """Writes the output of a group of rows."""
    weights, scale = self.scratch.weights.at[rows], self.inputs.out_norm_scale
    sizes, out, mixed, here = self.plan.sizes, self.outputs.out, self.scratch.mixed, pl.ds(0, ROWS)
    if scale is None and not sizes.num_banked and sizes.num_recent <= self.plan.tiles.slots:
      self.mix(weights, rows, out, rows)  # there is one group of slots
      return
    self.mix(weights, rows, mixed, here)
    inverse_rms = 1.0 if scale is None else self.inverse_rms(mixed)

    def chunk(lanes: Span, _: None) -> None:
      x = steps.load(mixed, here, lanes)
      steps.store(out, rows, lanes, x if scale is None else x * inverse_rms * scale[:, lanes])

    self.plan.for_each_chunk(chunk)

  def _write_stats(self) -> None:
    """Writes the statistics, turned from a slot per lane to a token per lane."""
    scratch, outputs = self.scratch, self.outputs
    for start in range(0, self.plan.stats_tokens, LANES):
      tokens, slots = pl.ds(start, LANES), slice(0, self.plan.sizes.num_slots)
      inverse_rms, logits = (ref[tokens, :].T for ref in (scratch.squares, scratch.dots))
      outputs.inverse_rms[:, tokens] = inverse_rms[slots]
      outputs.logits[:, tokens] = logits[slots]
      top = jnp.max(logits, axis=0, keepdims=True)
      total = jnp.sum(jnp.exp(logits - top), axis=0, keepdims=True)
      outputs.lse[:, tokens] = top + jnp.log(total)
