"""The second of two reverse kernels for TPUs: back through φ and the write, in parts of D.

But for sums over channels, which are added afterwards, nothing here connects channels. So a part of
φ and of its cotangent stays on the chip while the tokens pass, in tiles of some of its channels.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array
from resjax.kernels.mosaic_tpu import (
  ROWS,
  TOKENS,
  Span,
  columns,
  for_each_chunk,
  for_each_row_group,
  wide,
)
from resjax.kernels.operation import LANES
from resjax.kernels.streams.mosaic_tpu import budget
from resjax.kernels.streams.mosaic_tpu import phi as on_chip
from resjax.kernels.streams.mosaic_tpu import plan as tiles
from resjax.kernels.streams.mosaic_tpu import reverse_steps as steps
from resjax.kernels.streams.mosaic_tpu.backward_read import ReadBack
from resjax.kernels.streams.mosaic_tpu.plan import Chunks, Plan
from resjax.kernels.streams.mosaic_tpu.reverse_steps import Given
from resjax.kernels.streams.operands import Read


class WrittenBack(NamedTuple):
  """What the kernel writes.

  Attributes:
    streams: cotangent of the pending streams [R, T, D].
    weights: that of M and b [parts of D, R (R + 1), T] float32, to be summed over the first axis.
    out: that of the output [T, D].
    phi: that of φ [projections, rows, D] float32, or None.
  """

  streams: Any
  weights: Any
  out: Any
  phi: Any


class _Scratch(NamedTuple):
  """Buffers in VMEM. The streams after the write lie where their sources' cotangents will.

  Attributes:
    weights, read, norms, squares: columns of M and b, and of what `ReadBack` has.
    dots: columns of sums over channels.
    rows: cotangents of the streams after the write [R, TOKENS, width] float32.
    d_read: that of what was read, of a group of tokens [ROWS, width] float32.
    phi: `Phi` of a part of the channels, or None.
  """

  weights: Any
  read: Any
  norms: Any
  squares: Any
  dots: Any
  rows: Any
  d_read: Any
  phi: Any


def backward(
  read: Read, plan: Plan, way: budget.Reverse, given: Given, numbers: ReadBack
) -> WrittenBack:
  """Returns the cotangents of streams, their weights, the output and φ.

  Args:
    read: options.
    plan: sizes of the whole, which `way` cuts into parts and tiles.
    way: widths of parts and tiles.
    given: arrays; the inputs of the coefficients are not used.
    numbers: what the first kernel wrote.
  """
  count, tokens, width = plan.num_streams, plan.num_tokens, way.width
  parts, tiles_of_part = plan.width // way.part, way.part // width
  given = given._replace(parameters=None, products=None, mean_squares=None, d_weights=None)
  numbers = numbers._replace(parameters=None, gain=None)
  number_specs = [x if x is None else _numbers(len(x)) for x in numbers]
  stream_spec, out_spec = _streams(plan, way), _tokens(way)
  phi_shape = plan.projections, plan.rows, plan.width
  per_token = plan.num_weights + sum(len(x) for x in numbers if x is not None)
  return plan.run(
    read, lambda *refs: _run(read, plan.narrowed(way.part), plan.narrowed(width), *refs),
    "stream_read_backward_write",
    (given, numbers),
    grid=(parts, tokens // TOKENS, tiles_of_part),
    in_specs=(
      Given(
        stream_spec, _numbers(plan.num_weights), out_spec,
        None if given.phi is None else on_chip.SPEC, None,
        None if given.gain is None else pl.BlockSpec((1, width), lambda *at: (0, _tile(way, at))),
        None, None, out_spec, stream_spec, None,
      ),
      ReadBack(*number_specs),
    ),
    out_specs=WrittenBack(
      stream_spec,
      pl.BlockSpec((None, plan.num_weights, TOKENS), lambda c, i, _: (c, 0, i)),
      out_spec,
      None if given.phi is None else _channels(plan, way),
    ),
    out_shape=WrittenBack(
      plan.like(count, tokens, plan.width),
      plan.like(parts, plan.num_weights, tokens, dtype=jnp.float32),
      plan.like(tokens, plan.width),
      None if given.phi is None else plan.like(*phi_shape, dtype=jnp.float32),
    ),
    scratch=_Scratch(
      columns.room(plan.num_weights),
      columns.room(count),
      columns.room(2),
      columns.room(count),
      columns.room(plan.num_weights),
      pltpu.VMEM((count, TOKENS, width), jnp.float32),
      pltpu.VMEM((ROWS, width), jnp.float32),
      on_chip.room(plan.narrowed(way.part)),
    ),
    vmem_limit=budget.vmem_limit(read),
    cost=pl.CostEstimate(
      flops=2 * (3 * plan.num_weights + 3 * count * (1 + plan.num_columns)) * tokens * plan.width,
      transcendentals=0,
      bytes_accessed=(3 * count + 3) * plan.stream_bytes
      + parts * plan.number_bytes(per_token + plan.num_weights)
      + 2 * plan.phi_bytes,
    ),
  )  # fmt: skip


def _run(
  read: Read,
  part: Plan,
  plan: Plan,
  given: Given,
  numbers: ReadBack,
  outputs: WrittenBack,
  scratch: _Scratch,
) -> None:
  """Works on a tile: some channels of a part, of some tokens."""
  number, step, tile = (pl.program_id(axis) for axis in range(3))
  channels = pl.ds(pl.multiple_of(tile * plan.width, LANES), plan.width)

  @pl.when(jnp.logical_and(step == 0, tile == 0))
  def _() -> None:
    if plan.num_columns:
      start = pl.multiple_of(number * part.width, LANES)
      source = given.phi.at[read.site, :, :, pl.ds(start, part.width)]
      on_chip.load(part, source, scratch.phi)
      steps.clear(outputs.phi)

  @pl.when(tile == 0)
  def _() -> None:
    for values, target in (
      (given.weights, scratch.weights),
      (numbers.read, scratch.read),
      (numbers.norms, scratch.norms),
      (numbers.squares, scratch.squares),
    ):
      if values is not None:
        columns.write(values[...], target)
    steps.clear(outputs.weights)

  streams = outputs.streams
  tiles.write_streams(plan, given.streams, given.out, scratch.weights, streams)
  if plan.num_columns:

    def d_products(r: int) -> Array:
      start = r * plan.num_columns if plan.shared else 0
      return numbers.products[start : start + plan.num_columns, :]

    phi, d_phi = (ref.at[:, :, channels] for ref in (scratch.phi.kept, outputs.phi))
    steps.project_back(plan, phi, d_phi, d_products, streams, scratch.rows)

  def add(_: Array, rows: Span) -> None:
    d_read = _unmix(plan, given, outputs, scratch, rows)
    factors = scratch.read, scratch.squares
    steps.add_rows(plan, given, streams, factors, d_read, rows, scratch.rows)

  def write(_: Array, rows: Span) -> None:
    sources = tiles.chunks_of(given.streams, given.out)
    targets = outputs.streams, outputs.out
    steps.write_rows(plan, sources, targets, scratch.weights, scratch.dots, scratch.rows, rows)

  for_each_row_group(TOKENS, add)
  for_each_row_group(TOKENS, write)
  outputs.weights[...] += columns.read(scratch.dots, plan.num_weights)


def _unmix(plan: Plan, given: Given, outputs: WrittenBack, scratch: _Scratch, rows: Span) -> Chunks:
  """Returns the cotangent of the mix of a group of rows, before its norm, in chunks."""
  if given.gain is None:
    return lambda rows, lanes: wide(given.d_x, rows, lanes)
  tiles.mix(plan, tiles.chunks_of(outputs.streams), scratch.read, rows, scratch.d_read)
  inverse_rms, correction = (columns.spread(scratch.norms, rows, number) for number in range(2))

  def chunk(lanes: Span, _: Any) -> None:
    d, mixed = wide(given.d_x, rows, lanes), scratch.d_read[:, lanes]
    d = steps.norm_back(d, given.gain[:, lanes], mixed, inverse_rms, correction)
    scratch.d_read[:, lanes] = d

  for_each_chunk(plan.width, LANES, chunk)
  return lambda _, lanes: scratch.d_read[:, lanes]


def _tile(way: budget.Reverse, at: tuple[Array, ...]) -> Array:
  part, _, tile = at
  return part * (way.part // way.width) + tile


def _streams(plan: Plan, way: budget.Reverse) -> pl.BlockSpec:
  shape, mode = (plan.num_streams, TOKENS, way.width), pl.Buffered(way.width_buffers)
  return pl.BlockSpec(shape, lambda *at: (0, at[1], _tile(way, at)), pipeline_mode=mode)


def _tokens(way: budget.Reverse) -> pl.BlockSpec:
  shape, mode = (TOKENS, way.width), pl.Buffered(way.width_buffers)
  return pl.BlockSpec(shape, lambda *at: (at[1], _tile(way, at)), pipeline_mode=mode)


def _numbers(rows: int) -> pl.BlockSpec:
  return pl.BlockSpec((rows, TOKENS), lambda _, i, __: (0, i))


def _channels(plan: Plan, way: budget.Reverse) -> pl.BlockSpec:
  """Returns the spec of a part of the cotangent of φ, which stays while tokens pass."""
  shape, mode = (plan.projections, plan.rows, way.part), pl.Buffered(1)
  return pl.BlockSpec(shape, lambda c, *_: (0, 0, c), pipeline_mode=mode)
