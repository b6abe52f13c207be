"""The reverse kernel for TPUs: streams and their cotangents are loaded once and written once."""

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
from resjax.kernels.streams.mosaic_tpu import plan as tiles
from resjax.kernels.streams.mosaic_tpu.obstacles import num_buffers, vmem_limit
from resjax.kernels.streams.mosaic_tpu.plan import TOKENS, Inputs, Plan
from resjax.kernels.streams.operands import Operands, Pending, Read, Stats, all_coefficients
from resjax.typing import Array


class _Given(NamedTuple):
  """The arrays of `Inputs`, what the forward pass kept, and cotangents of what it wrote.

  Attributes:
    products, mean_squares: see `Stats`, flat as the forward kernel wrote them.
    d_x: cotangent of what was read [T, D].
    d_streams: of the streams after the write [R, T, D].
    d_weights: of the weights of the next write [R (R + 1), T] float32.
  """

  streams: Any
  weights: Any
  out: Any
  phi: Any
  parameters: Any
  gain: Any
  products: Any
  mean_squares: Any
  d_x: Any
  d_streams: Any
  d_weights: Any


class _Scratch(NamedTuple):
  """On-chip memory.

  Attributes:
    weights, read, dots: columns of M and b, of p, and of sums over channels.
    streams: the streams after the write [R, TOKENS, D].
    rows: their cotangents in float32 [R, TOKENS, D].
    d_x: the cotangent of what was read, before its norm [TOKENS, D] float32.
    mixed: [ROWS, D].
  """

  weights: Any
  read: Any
  dots: Any
  streams: Any
  rows: Any
  d_x: Any
  mixed: Any


@on_one_device
def backward(
  read: Read, operands: Operands, stats: Stats, d_x: Array, d_streams: Array, d_weights: Array
) -> Operands:
  """Runs the reverse pass, see `reference.backward`."""
  (streams, weights, out), projection, parameters, gain = operands
  plan = Plan.of(operands)
  buffers = num_buffers(read, plan)
  count, tokens, width = streams.shape
  phi, lanes = plan.phi(projection), tiles.on_lanes(parameters)
  wide_gain = None if gain is None else gain.astype(jnp.float32)[None]
  products, squares = stats
  if plan.num_columns:
    products = products.reshape(plan.num_products, tokens)
  parts = plan.grid[0]
  shared = phi, lanes, wide_gain
  whole: tuple[Any, Any, Any] = jax.tree.map(lambda x: tiles.whole(x.shape), shared)
  d_phi = None if phi is None else jnp.zeros((plan.projections, plan.rows, width))
  sums = d_phi, lanes, None if gain is None else jnp.zeros((ROWS, width))
  sum_shapes = jax.tree.map(lambda x: plan.like(parts, *x.shape, dtype=jnp.float32), sums)
  sum_specs = jax.tree.map(lambda x: tiles.summed(x.shape), sums)
  weight_spec, out_spec = plan.numbers(plan.num_weights), plan.tokens(buffers)
  pending_specs = plan.streams(buffers), weight_spec, out_spec
  kept_specs: tuple[Any, Any] = (None, None)
  if plan.num_columns:
    kept_specs = plan.numbers(plan.num_products), plan.numbers(count)
  (found,) = pl.pallas_call(
    lambda *refs: _run(read, plan, *refs),
    out_shape=(
      Inputs(
        plan.like(*streams.shape), plan.like(*weights.shape, dtype=jnp.float32),
        plan.like(tokens, width), *sum_shapes,
      ),
    ),
    grid=plan.grid,
    in_specs=(
      _Given(*pending_specs, *whole, *kept_specs, out_spec, *pending_specs[:2]),
    ),
    out_specs=(Inputs(plan.streams(buffers), weight_spec, out_spec, *sum_specs),),
    scratch_shapes=(
      _Scratch(
        tiles.column_room(plan.num_weights),
        tiles.column_room(count),
        tiles.column_room(plan.num_weights),
        pltpu.VMEM((count, TOKENS, width), plan.dtype),
        pltpu.VMEM((count, TOKENS, width), jnp.float32),
        pltpu.VMEM((TOKENS, width), jnp.float32),
        pltpu.VMEM((ROWS, width), jnp.float32),
      ),
    ),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=vmem_limit(read)
    ),
    cost_estimate=pl.CostEstimate(
      flops=2 * (3 * plan.num_weights + 3 * count * (1 + plan.num_columns)) * tokens * width,
      transcendentals=tokens,
      bytes_accessed=(3 * count + 3) * tokens * width * plan.dtype.itemsize + plan.small_bytes(2),
    ),
    interpret=read.interpret,
    name="stream_read_backward",
  )(
    _Given(
      streams, weights, out, *shared, products, squares, d_x, d_streams,
      d_weights.astype(jnp.float32),
    )
  )  # fmt: skip
  d_projection: Array | None = None
  if projection is not None:
    d_projection = jnp.sum(found.phi, axis=0)[:, : plan.num_columns]
    d_projection = jnp.swapaxes(d_projection, 1, 2).reshape(projection.shape)
    d_projection = d_projection.astype(projection.dtype)
  d_parameters = jax.tree.map(
    lambda d, p: jnp.sum(d, axis=(0, -2, -1)).astype(p.dtype), found.parameters, parameters
  )
  d_gain = None if gain is None else jnp.sum(found.gain, axis=(0, 1)).astype(gain.dtype)
  pending = Pending(found.streams, found.weights, found.out)
  return Operands(pending, d_projection, d_parameters, d_gain)


def _run(read: Read, plan: Plan, inputs: _Given, outputs: Inputs, scratch: _Scratch) -> None:
  """Works on one tile."""
  count, token_axes = plan.num_streams, (1, TOKENS)

  @pl.when(pl.program_id(1) == 0)
  def _() -> None:
    for ref in jax.tree.leaves((outputs.phi, outputs.parameters, outputs.gain)):
      ref[...] = jnp.zeros_like(ref)

  tiles.columns(inputs.weights[...], scratch.weights)
  tiles.write_streams(plan, inputs.streams, inputs.out, scratch.weights, scratch.streams)
  stats = Stats(None, None)
  if plan.num_columns:
    stats = tiles.stats(plan, inputs.products, inputs.mean_squares)
  parameters = jax.tree.map(lambda ref: ref[...], inputs.parameters)
  (weights, _mixing), pull = jax.vjp(
    lambda stats, parameters: all_coefficients(read, count, stats, parameters, token_axes),
    stats,
    parameters,
  )
  tiles.columns(weights[:, 0], scratch.read)
  for_each_row_group(TOKENS, lambda _, rows: _unmix(read, plan, inputs, outputs, scratch, rows))
  d_read = tiles.from_columns(scratch.dots, count)[:, None]
  d_stats, d_parameters = pull((d_read, inputs.d_weights[...][:, None]))
  for ref, d in zip(
    jax.tree.leaves(outputs.parameters), jax.tree.leaves(d_parameters), strict=True
  ):
    ref[...] += d
  if plan.num_columns:
    _project_back(plan, inputs, outputs, scratch, d_stats.products)
    tiles.columns(d_stats.mean_squares[:, 0] * (2 / plan.width), scratch.dots)
  for_each_row_group(TOKENS, lambda _, rows: _add(plan, inputs, scratch, rows))
  for_each_row_group(TOKENS, lambda _, rows: _write(plan, inputs, outputs, scratch, rows))
  outputs.weights[...] = tiles.from_columns(scratch.dots, plan.num_weights)


def _unmix(
  read: Read, plan: Plan, inputs: _Given, outputs: Inputs, scratch: _Scratch, rows: Span
) -> None:
  """Writes the cotangent of Σ_r p_r H_r of a group of rows, and that of p to columns."""
  inverse_rms = correction = tiles.zeros()  # unused without a norm
  if inputs.gain is not None:
    squares = tiles.mix(plan, scratch.streams, scratch.read, rows, scratch.mixed)
    mean = jnp.sum(squares, axis=1, keepdims=True) / plan.width
    inverse_rms = jnp.broadcast_to(lax.rsqrt(mean + read.norm_eps), (ROWS, LANES))

    def project(lanes: Span, total: Array) -> Array:
      d, normed = tiles.wide(inputs.d_x, rows, lanes), scratch.mixed[:, lanes] * inverse_rms
      outputs.gain[:, lanes] += d * normed
      return total + d * inputs.gain[:, lanes] * normed

    total = for_each_chunk(plan.width, LANES, project, tiles.zeros())
    mean = jnp.sum(total, axis=1, keepdims=True) / plan.width
    correction = jnp.broadcast_to(mean, (ROWS, LANES))

  def chunk(lanes: Span, dots: list[Array]) -> list[Array]:
    d = tiles.wide(inputs.d_x, rows, lanes)
    if inputs.gain is not None:
      normed = scratch.mixed[:, lanes] * inverse_rms
      d = inverse_rms * (d * inputs.gain[:, lanes] - normed * correction)
    scratch.d_x[rows, lanes] = d
    return [dot + d * tiles.wide(scratch.streams, r, rows, lanes) for r, dot in enumerate(dots)]

  dots = for_each_chunk(plan.width, LANES, chunk, [tiles.zeros() for _ in range(plan.num_streams)])
  for r, dot in enumerate(dots):
    tiles.put(scratch.dots, rows, r, dot)


def _project_back(
  plan: Plan, inputs: _Given, outputs: Inputs, scratch: _Scratch, d_products: Array
) -> None:
  """Writes what the products add to the cotangents of the streams; adds to that of φ."""
  missing = jnp.zeros((plan.rows - plan.num_columns, TOKENS), jnp.float32)
  for r in range(plan.num_streams):
    d = (d_products[r] if plan.shared else d_products)[:, 0]
    if len(missing):
      d = jnp.concatenate([d, missing])
    number = 0 if plan.shared else r
    scratch.rows[r] = tiles.product_back(plan, d, inputs.phi[number])
    outputs.phi[number] += tiles.product_phi(plan, d, scratch.streams[r])


def _add(plan: Plan, inputs: _Given, scratch: _Scratch, rows: Span) -> None:
  """Completes the cotangents of the streams of a group of rows."""
  for r in range(plan.num_streams):
    weight, scale = (tiles.spread(ref, rows, r) for ref in (scratch.read, scratch.dots))

    def chunk(
      lanes: Span, _: Any, r: int = r, weight: Array = weight, scale: Array = scale
    ) -> None:
      d = tiles.wide(inputs.d_streams, r, rows, lanes) + weight * scratch.d_x[rows, lanes]
      if plan.num_columns:
        d += scratch.rows[r, rows, lanes] + scale * tiles.wide(scratch.streams, r, rows, lanes)
      scratch.rows[r, rows, lanes] = d

    for_each_chunk(plan.width, LANES, chunk)


def _write(plan: Plan, inputs: _Given, outputs: Inputs, scratch: _Scratch, rows: Span) -> None:
  """Writes the cotangents of pending streams and output, and those of M and b to columns."""
  count = plan.num_streams

  def source(s: int, lanes: Span) -> Array:
    if s == count:
      return tiles.wide(inputs.out, rows, lanes)
    return tiles.wide(inputs.streams, s, rows, lanes)

  for r in range(count):

    def add(lanes: Span, dots: list[Array], r: int = r) -> list[Array]:
      d = scratch.rows[r, rows, lanes]
      return [total + d * source(s, lanes) for s, total in enumerate(dots)]

    dots = for_each_chunk(plan.width, LANES, add, [tiles.zeros() for _ in range(count + 1)])
    for s, found in enumerate(dots):
      tiles.put(scratch.dots, rows, r * (count + 1) + s, found)

  for s in range(count + 1):
    factors = [tiles.spread(scratch.weights, rows, r * (count + 1) + s) for r in range(count)]

    def chunk(lanes: Span, _: Any, s: int = s, factors: list[Array] = factors) -> None:
      total = factors[0] * scratch.rows[0, rows, lanes]
      for r in range(1, count):
        total += factors[r] * scratch.rows[r, rows, lanes]
      if s == count:
        outputs.out[rows, lanes] = total.astype(outputs.out.dtype)
      else:
        outputs.streams[s, rows, lanes] = total.astype(outputs.streams.dtype)

    for_each_chunk(plan.width, LANES, chunk)
