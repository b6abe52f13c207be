"""The forward kernel for TPUs: streams are loaded once, written once, and read on the chip."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention.mosaic_tpu.call import on_one_device
from resjax.kernels.depth_attention.mosaic_tpu.loops import (
  Span,
  for_each_chunk,
  for_each_row_group,
)
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS
from resjax.kernels.streams.mosaic_tpu import budget
from resjax.kernels.streams.mosaic_tpu import plan as tiles
from resjax.kernels.streams.mosaic_tpu.coefficients import write_coefficients
from resjax.kernels.streams.mosaic_tpu.plan import TOKENS, Inputs, Plan, Ref
from resjax.kernels.streams.operands import Operands, Read, Stats
from resjax.typing import Array


class _Outputs(NamedTuple):
  """What the forward kernel writes.

  Attributes:
    x: what is read [T, D].
    streams: after the write [R, T, D], or None if they are not kept.
    weights: M and b of the next write [R (R + 1), T] float32.
    products: with φ [K or R K, T] float32, or None.
    mean_squares: of every stream [R, T] float32, or None.
  """

  x: Any
  streams: Any
  weights: Any
  products: Any
  mean_squares: Any


class _Scratch(NamedTuple):
  """On-chip memory.

  Attributes:
    weights, read: columns of M and b, and of p: a token per row.
    mixed: what is read, of a group of tokens [ROWS, D] float32.
    streams: the streams after the write [R, TOKENS, D] if they are not kept, or None.
  """

  weights: Any
  read: Any
  mixed: Any
  streams: Any


@on_one_device
def forward(
  read: Read, operands: Operands, keep_streams: bool = True
) -> tuple[Array, Array | None, Array, Stats]:
  """Runs the forward pass, see `reference.forward`; without the streams if they are not kept."""
  (streams, weights, out), projection, parameters, gain = operands
  plan = Plan.of(operands)
  buffers = budget.forward_buffers(read, plan)
  count, tokens, width = streams.shape
  phi, lanes = plan.phi(projection), plan.on_lanes(parameters)
  gain = None if gain is None else gain.astype(jnp.float32)[None]
  numbers = [plan.num_weights, plan.num_products, plan.num_squares]
  shapes = [plan.like(n, tokens, dtype=jnp.float32) if n else None for n in numbers]
  specs = [plan.numbers(n) for n in numbers]
  whole = jax.tree.map(lambda x: tiles.whole(x.shape), (phi, lanes, gain))
  (written,) = pl.pallas_call(
    lambda *refs: _run(read, plan, *refs),
    out_shape=(
      _Outputs(
        plan.like(tokens, width), plan.like(*streams.shape) if keep_streams else None, *shapes
      ),
    ),
    grid=plan.grid,
    in_specs=(
      Inputs(plan.streams(buffers), plan.numbers(plan.num_weights), plan.tokens(buffers), *whole),
    ),
    out_specs=(
      _Outputs(plan.tokens(buffers), plan.streams(buffers) if keep_streams else None, *specs),
    ),
    scratch_shapes=(
      _Scratch(
        tiles.column_room(plan.num_weights),
        tiles.column_room(count),
        pltpu.VMEM((ROWS, width), jnp.float32),
        None if keep_streams else pltpu.VMEM((count, TOKENS, width), plan.dtype),
      ),
    ),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=budget.vmem_limit(read)
    ),
    cost_estimate=pl.CostEstimate(
      flops=2 * (plan.num_weights + count * (1 + plan.num_columns)) * tokens * width,
      transcendentals=tokens,
      bytes_accessed=(count * (1 + keep_streams) + 2) * plan.stream_bytes
      + plan.number_bytes(plan.num_weights + sum(numbers))
      + budget.fetches(read, plan) * plan.phi_bytes,
    ),
    interpret=read.interpret,
    name="stream_read_forward",
  )(Inputs(streams, weights, out, phi, lanes, gain))
  products = written.products
  if plan.shared:
    products = products.reshape(count, plan.num_columns, tokens)
  return written.x, written.streams, written.weights, Stats(products, written.mean_squares)


def _run(read: Read, plan: Plan, inputs: Inputs, outputs: _Outputs, scratch: _Scratch) -> None:
  """Works on one tile."""
  streams = outputs.streams if scratch.streams is None else scratch.streams
  tiles.columns(inputs.weights[...], scratch.weights)
  tiles.write_streams(plan, inputs.streams, inputs.out, scratch.weights, streams)
  if plan.num_columns:
    _project(plan, inputs, streams, outputs, scratch)
  p = write_coefficients(
    read, plan, outputs.products, outputs.mean_squares, inputs.parameters, outputs.weights
  )
  tiles.columns(p, scratch.read)
  for_each_row_group(
    TOKENS, lambda _, rows: _mix(read, plan, inputs, streams, outputs, scratch, rows)
  )


def _project(
  plan: Plan, inputs: Inputs, streams: Ref, outputs: _Outputs, scratch: _Scratch
) -> None:
  """Writes products with φ, and mean squares."""
  total, columns = None, plan.num_columns
  for r in range(plan.num_streams):
    phi = [ref[0 if plan.shared else r] for ref in inputs.phi]
    found = tiles.product(plan, streams[r], phi)
    if plan.shared:
      outputs.products[r * columns : (r + 1) * columns, :] = found[:columns]
    else:
      total = found if total is None else total + found
  if total is not None:
    outputs.products[...] = total[:columns]

  def group(_: Array, rows: Span) -> None:
    for r in range(plan.num_streams):

      def chunk(lanes: Span, squares: Array, r: int = r) -> Array:
        x = tiles.wide(streams, r, rows, lanes)
        return squares + x * x

      tiles.put(scratch.read, rows, r, for_each_chunk(plan.width, LANES, chunk, tiles.zeros()))

  for_each_row_group(TOKENS, group)
  squares = tiles.from_columns(scratch.read, plan.num_streams)
  outputs.mean_squares[...] = squares / plan.width


def _mix(
  read: Read,
  plan: Plan,
  inputs: Inputs,
  streams: Ref,
  outputs: _Outputs,
  scratch: _Scratch,
  rows: Span,
) -> None:
  """Writes what is read of a group of rows."""
  squares = tiles.mix(plan, tiles.chunks_of(streams), scratch.read, rows, scratch.mixed)
  mean = jnp.sum(squares, axis=1, keepdims=True) / plan.width
  inverse_rms = jnp.broadcast_to(lax.rsqrt(mean + read.norm_eps), (ROWS, LANES))

  def chunk(lanes: Span, _: Any) -> None:
    x = scratch.mixed[:, lanes]
    if inputs.gain is not None:
      x = x * inverse_rms * inputs.gain[:, lanes]
    outputs.x[rows, lanes] = x.astype(outputs.x.dtype)

  for_each_chunk(plan.width, LANES, chunk)
