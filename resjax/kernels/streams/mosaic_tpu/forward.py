"""The forward kernel for TPUs: streams are loaded once, written once, and read on the chip."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array
from resjax.kernels.mosaic_tpu import (
  ROWS,
  TOKENS,
  Span,
  call,
  columns,
  for_each_chunk,
  for_each_row_group,
  wide,
)
from resjax.kernels.operation import LANES, Ref
from resjax.kernels.streams.mosaic_tpu import budget
from resjax.kernels.streams.mosaic_tpu import phi as on_chip
from resjax.kernels.streams.mosaic_tpu import plan as tiles
from resjax.kernels.streams.mosaic_tpu.coefficients import write_coefficients
from resjax.kernels.streams.mosaic_tpu.plan import Inputs, Plan
from resjax.kernels.streams.operands import Operands, Read, Stats


class _Outputs(NamedTuple):
  """The outputs of the forward kernel.

  Attributes:
    x: the read [T, D].
    streams: after the write [R, T, D], or None if they are not kept.
    weights: M and b of the next write [R (R + 1), T] float32.
    stats: products with φ [K or R K, T] and mean squares of every stream [R, T] in float32, or None
      if there are none or they are not kept.
  """

  x: Any
  streams: Any
  weights: Any
  stats: Stats


class _Scratch(NamedTuple):
  """Buffers in VMEM for a tile, and for φ, which stays.

  Attributes:
    weights, read: columns of M and b, and of p: a token per row.
    mixed: the read of a group of tokens [ROWS, D] float32.
    streams: the streams after the write [R, TOKENS, D] if they are not kept, or None.
    stats: as in `_Outputs`, of a tile, if they are not kept.
    phi: `Phi`, or None.
  """

  weights: Any
  read: Any
  mixed: Any
  streams: Any
  stats: Stats
  phi: Any


@call.on_one_device
def forward(
  read: Read, operands: Operands, keep_streams: bool = True, keep_stats: bool = True
) -> tuple[Array, Array | None, Array, Stats | None]:
  """Runs the forward pass, see `reference.forward`; without streams or stats that are not kept."""
  (streams, weights, out), projection, parameters, gain = operands
  plan = Plan.of(operands.at(read.site))
  buffers = budget.forward_buffers(read, plan)
  count, tokens, width = streams.shape
  phi, lanes = on_chip.laid_out(plan, projection), plan.on_lanes(parameters)
  gain = None if gain is None else gain.astype(jnp.float32)[None]
  numbers = [plan.num_products, plan.num_squares]
  kept = numbers if keep_stats else [0, 0]
  written = plan.run(
    read, lambda *refs: _run(read, plan, *refs), "stream_read_forward",
    (Inputs(streams, weights, out, phi, lanes, gain),),
    in_specs=(
      Inputs(
        plan.streams(buffers), plan.numbers(plan.num_weights), plan.tokens(buffers),
        None if phi is None else on_chip.SPEC, *plan.whole((lanes, gain)),
      ),
    ),
    out_specs=_Outputs(
      plan.tokens(buffers), plan.streams(buffers) if keep_streams else None,
      plan.numbers(plan.num_weights), Stats(*map(plan.numbers, kept)),
    ),
    out_shape=_Outputs(
      plan.like(tokens, width), plan.like(*streams.shape) if keep_streams else None,
      plan.like(plan.num_weights, tokens, dtype=jnp.float32),
      Stats(*(plan.like(n, tokens, dtype=jnp.float32) if n else None for n in kept)),
    ),
    scratch=_Scratch(
      columns.room(plan.num_weights),
      columns.room(count),
      pltpu.VMEM((ROWS, width), jnp.float32),
      None if keep_streams else pltpu.VMEM((count, TOKENS, width), plan.dtype),
      Stats(*(None if keep_stats or not n else columns.number_room(n) for n in numbers)),
      on_chip.room(plan),
    ),
    vmem_limit=budget.vmem_limit(read),
    cost=pl.CostEstimate(
      flops=2 * (plan.num_weights + count * (1 + plan.num_columns)) * tokens * width,
      transcendentals=tokens,
      bytes_accessed=(count * (1 + keep_streams) + 2) * plan.stream_bytes
      + plan.number_bytes(2 * plan.num_weights + sum(kept))
      + budget.fetches(read, plan) * plan.phi_bytes,
    ),
  )  # fmt: skip
  stats = written.stats if keep_stats else None
  if stats is not None and plan.shared:
    stats = stats._replace(products=stats.products.reshape(count, plan.num_columns, tokens))
  return written.x, written.streams, written.weights, stats


def _run(read: Read, plan: Plan, inputs: Inputs, outputs: _Outputs, scratch: _Scratch) -> None:
  """Writes to the streams of one tile of tokens, and reads them."""
  if plan.num_columns:
    on_chip.load_at_start(plan, budget.fetches(read, plan), inputs.phi.at[read.site], scratch.phi)
  streams = outputs.streams if scratch.streams is None else scratch.streams
  stats = outputs.stats if scratch.stats.mean_squares is None else scratch.stats
  columns.write(inputs.weights[...], scratch.weights)
  tiles.write_streams(plan, inputs.streams, inputs.out, scratch.weights, streams)
  if plan.num_columns:
    _project(plan, streams, stats, scratch)
  p = write_coefficients(read, plan, *stats, inputs.parameters, outputs.weights)
  columns.write(p, scratch.read)
  for_each_row_group(
    TOKENS, lambda _, rows: _mix(read, plan, inputs, streams, outputs, scratch, rows)
  )


def _project(plan: Plan, streams: Ref, stats: Stats, scratch: _Scratch) -> None:
  """Writes products with φ, and mean squares."""
  size = plan.num_columns
  if plan.shared:
    for r in range(plan.num_streams):
      found = tiles.product(plan, streams[r], scratch.phi.kept[0])
      stats.products[r * size : (r + 1) * size, :] = found[:size]
  else:
    stats.products[...] = jnp.zeros_like(stats.products)

    def add(r: Array, _: Any) -> None:
      stats.products[...] += tiles.product(plan, streams[r], scratch.phi.kept[r])[:size]

    # A loop at run time, as steps that are written out have room on the chip of their own.
    lax.fori_loop(0, plan.num_streams, add, None)

  def group(_: Array, rows: Span) -> None:
    for r in range(plan.num_streams):

      def chunk(lanes: Span, squares: Array, r: int = r) -> Array:
        x = wide(streams, r, rows, lanes)
        return squares + x * x

      columns.put(scratch.read, rows, r, for_each_chunk(plan.width, LANES, chunk, tiles.zeros()))

  for_each_row_group(TOKENS, group)
  squares = columns.read(scratch.read, plan.num_streams)
  stats.mean_squares[...] = squares / plan.width


def _mix(
  read: Read,
  plan: Plan,
  inputs: Inputs,
  streams: Ref,
  outputs: _Outputs,
  scratch: _Scratch,
  rows: Span,
) -> None:
  """Writes the read of a group of rows."""
  squares = tiles.mix(plan, tiles.chunks_of(streams), scratch.read, rows, scratch.mixed)
  mean = jnp.sum(squares, axis=1, keepdims=True) / plan.width
  inverse_rms = jnp.broadcast_to(lax.rsqrt(mean + read.norm_eps), (ROWS, LANES))

  def chunk(lanes: Span, _: Any) -> None:
    x = scratch.mixed[:, lanes]
    if inputs.gain is not None:
      x = x * inverse_rms * inputs.gain[:, lanes]
    outputs.x[rows, lanes] = x.astype(outputs.x.dtype)

  for_each_chunk(plan.width, LANES, chunk)
