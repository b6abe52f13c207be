"""The reverse pass on NVIDIA GPUs: the backward of the mix and its norm, then of the write.

Both kernels compute the streams again from those before the write. The first computes the
cotangents of p. From them XLA computes the cotangents of the products with φ, which the second
needs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.base import Array, PyTree
from resjax.kernels.mosaic_gpu import ChannelSums, GpuTiles, Ring, call, row_ops
from resjax.kernels.operation import Field, Ref
from resjax.kernels.streams.mosaic_gpu import plan
from resjax.kernels.streams.mosaic_gpu.forward import wide_gain
from resjax.kernels.streams.mosaic_gpu.products import products_back, products_phi
from resjax.kernels.streams.operands import Operands, Pending, Read, Stats, all_coefficients

# Sums over channels that a thread adds up in registers while it walks over a token.
_HELD_SUMS = 24


class _Unmixed(NamedTuple):
  """What the reverse pass of the mix finds of a token.

  Attributes:
    streams: after the write [R, T, ...]; None without φ.
    d_read: cotangents of p [T, R].
    scale: the cotangent of Σ_r p_r H_r is scale γ dx - shrink Σ_r p_r H_r; None without a norm.
    shrink: see `scale` [T].
  """

  streams: Field
  d_read: Field
  scale: Field
  shrink: Field


class _Inputs(NamedTuple):
  """The inputs of both kernels; rows are [T, D / 128, 128].

  Attributes:
    streams: before the write, R rows of a token.
    out: the output of a branch, which the write adds.
    weights: M and b of the write [T, R (R + 1)].
    read: p [T, R].
    gain: of the norm, or None.
    d_x: cotangent of what was read.
  """

  streams: Field
  out: Field
  weights: Field
  read: Field
  gain: Field
  d_x: Field


class Cotangents(NamedTuple):
  """Further inputs of the reverse pass of the write.

  Attributes:
    scale, shrink: see `_Unmixed`.
    d_streams: of the streams after the write, R rows of a token.
    back: the part of the streams' cotangents through the products with φ, or None without φ.
    squares: factors of the streams that the mean squares add [T, R], or None.
  """

  scale: Field
  shrink: Field
  d_streams: Field
  back: Field
  squares: Field


def backward(
  read: Read, operands: Operands, stats: Stats, d_x: Array, d_streams: Array, d_mixing: Array
) -> Operands:
  """Runs the reverse pass on the rows of one device, see `reference.backward`."""
  phi, count = operands.projection, len(operands.pending.streams)
  tokens, width = operands.like.shape

  def coefficients(stats: Stats, parameters: PyTree) -> tuple[Array, Array]:
    spread = jax.tree.map(lambda p: p[..., None], parameters)
    return all_coefficients(read, count, stats, spread, (tokens,))

  (p, _), pull = jax.vjp(coefficients, stats, operands.parameters)
  unmixed, d_gain = unmix(read, operands, p, d_x)
  d_stats, d_parameters = pull((unmixed.d_read.T, d_mixing.astype(p.dtype)))
  d_phi, back, squares = None, None, None
  if phi is not None:
    d_phi, back = _through_products(call.unfold(unmixed.streams), phi, d_stats.products)
    back, squares = call.fold(back), d_stats.mean_squares.T * (2 / width)
  given = Cotangents(unmixed.scale, unmixed.shrink, call.fold(d_streams), back, squares)
  pending = unwrite(read, operands, p, d_x, given)
  return Operands(pending, d_phi, d_parameters, d_gain)


def _through_products(streams: Array, phi: Array, d: Array) -> tuple[Array, Array]:
  """Returns the cotangent of φ, and the part of the streams' cotangents through products with φ."""
  shared, count = phi.ndim == 2, len(streams)
  d = jnp.swapaxes(d, 1, 2) if shared else jnp.broadcast_to(d.T, (count, *d.T.shape))
  d_phi = products_phi(streams, d)
  d_phi = jnp.sum(d_phi, axis=0) if shared else d_phi
  phi_of_each = jnp.broadcast_to(phi.astype(jnp.float32), (count, *phi.shape[-2:]))
  return d_phi.astype(phi.dtype), products_back(d, phi_of_each, streams.dtype)


def unmix(read: Read, operands: Operands, p: Array, d_x: Array) -> tuple[_Unmixed, Array | None]:
  """Runs the backward of the mix with p [R, T]; returns its results and the gain's cotangent."""
  inputs = _inputs(operands, p, d_x)
  rows, gain = inputs.streams, inputs.gain
  numbers = jax.ShapeDtypeStruct((rows.shape[1],), jnp.float32)
  kept = None if operands.projection is None else jax.ShapeDtypeStruct(rows.shape, rows.dtype)
  outputs = _Unmixed(kept, jax.ShapeDtypeStruct(inputs.read.shape, jnp.float32), numbers, numbers)
  summed: tuple = ()
  if gain is None:
    outputs = outputs._replace(scale=None, shrink=None)
  else:
    summed = (plgpu.SMEM(gain.shape, jnp.float32),)
  found = _launch(
    read, partial(_unmix_kernel, read.norm_eps), "stream_read_unmix",
    plan.unmix_tiles(read, operands), rows, inputs=inputs, outputs=outputs, numbers=summed,
    totals=None if gain is None else jax.ShapeDtypeStruct(gain.shape, jnp.float32),
  )  # fmt: skip
  if gain is None or operands.gain is None:
    return found.outputs, None
  return found.outputs, call.unfold(found.totals).astype(operands.gain.dtype)


def _inputs(operands: Operands, p: Array, d_x: Array) -> _Inputs:
  streams, weights, out = operands.pending
  rows, row, d_row = call.fold((streams, out, d_x))
  return _Inputs(rows, row, weights.T, p.T, wide_gain(operands), d_row)


def _launch(
  read: Read, kernel: Callable[[call.Refs], None], name: str, sizes: GpuTiles | None, rows: Array,
  **arrays: Any,
) -> call.Results:  # fmt: skip
  assert sizes is not None  # obstacles.py refuses reads without any
  like = jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype)
  return call.launch(read, kernel, sizes, like, name, **arrays)


def _unmix_kernel(eps: float, refs: call.Refs) -> None:
  inputs: _Inputs = refs.inputs
  _, tokens, groups, _ = inputs.streams.shape
  rows = *call.stream_rows(inputs.streams), call.row_stream(inputs.out), call.row_stream(inputs.d_x)
  ring = call.make_ring(refs.rings[0], rows, tokens)
  d_gain = refs.numbers[0] if refs.numbers else None
  if d_gain is not None:  # every thread adds to its own channels alone
    row_ops.store(d_gain, row_ops.zeros(groups))

  def token_backward(step: Array, _: None) -> None:
    token = ring.token(step)  # its numbers are loaded while its rows arrive
    weights, read = (row_ops.numbers_of(of, token) for of in (inputs.weights, inputs.read))
    for position in range(len(rows)):
      ring.wait(step, position)
    factors = _rewrite(inputs, refs.outputs, weights, read, ring, refs.sums, step, eps)
    _unmix_token(inputs, refs.outputs, read, factors, ring, refs.sums, step, d_gain)
    ring.release(step, range(len(rows)))

  lax.fori_loop(jnp.int32(0), ring.steps, token_backward, None)
  if d_gain is not None:
    row_ops.store(refs.own_totals(), row_ops.load(d_gain))


def _rewrite(
  inputs: _Inputs, outputs: _Unmixed, weights: list[Array], read: list[Array], ring: Ring,
  sums: ChannelSums, step: Array, eps: float,
) -> tuple[Array, Array] | None:  # fmt: skip
  """Writes the new streams to the ring in place of the old ones; returns `scale` and `shrink`."""
  token, (count, _, groups, _) = ring.token(step), inputs.streams.shape

  def write(index: Array, totals: tuple[Array, Array]) -> tuple[Array, Array]:
    parts = plan.written_part(ring, step, weights, index)
    for r, part in enumerate(parts):
      row_ops.store_part(ring.at(step, r), index, part)
      if outputs.streams is not None:
        row_ops.store_part(outputs.streams.at[r, token], index, part)
    x, d = row_ops.weighted(read, parts), ring.load_part(step, count + 1, index)
    if inputs.gain is not None:
      d = d * row_ops.load_part(inputs.gain, index)
    return totals[0] + x * x, totals[1] + d * x

  totals = row_ops.each_part(groups, write, row_ops.zero_parts(groups, 2))
  if inputs.gain is None:
    return None
  for place, total in enumerate(totals):
    sums.put(place, (total,))
  sums.reduce()
  width = groups * row_ops.LANES
  scale = lax.rsqrt(sums[0] / width + eps)
  shrink = sums[1] / width * scale * scale * scale
  outputs.scale[token] = scale
  outputs.shrink[token] = shrink
  return scale, shrink


def _unmix_token(
  inputs: _Inputs, outputs: _Unmixed, read: list[Array], factors: tuple[Array, Array] | None,
  ring: Ring, sums: ChannelSums, step: Array, d_gain: Ref | None,
) -> None:  # fmt: skip
  """Writes the cotangents of p of a token; adds its part to that of the gain."""
  count, _, groups, _ = inputs.streams.shape

  def add(index: Array, dots: tuple[Array, ...]) -> tuple[Array, ...]:
    parts = [ring.load_part(step, r, index) for r in range(count)]
    d = ring.load_part(step, count + 1, index)
    if factors is not None:
      scale, shrink = factors
      x = row_ops.weighted(read, parts)
      row_ops.store_part(d_gain, index, row_ops.load_part(d_gain, index) + d * x * scale)
      d = scale * d * row_ops.load_part(inputs.gain, index) - shrink * x
    return tuple(dot + d * part for dot, part in zip(dots, parts, strict=True))

  dots = row_ops.each_part(groups, add, row_ops.zero_parts(groups, count))
  for r, dot in enumerate(dots):
    sums.put(r, (dot,))
  sums.reduce()
  for r in range(count):
    outputs.d_read[ring.token(step), r] = sums[r]


def unwrite(read: Read, operands: Operands, p: Array, d_x: Array, given: Cotangents) -> Pending:
  """Runs the backward of the write; returns the cotangents of streams, weights and output."""
  inputs, weights = _inputs(operands, p, d_x), operands.pending.weights
  row = jax.ShapeDtypeStruct(inputs.out.shape, inputs.out.dtype)
  numbers = jax.ShapeDtypeStruct(inputs.weights.shape, jnp.float32)
  outputs = Pending(jax.ShapeDtypeStruct(inputs.streams.shape, row.dtype), numbers, row)
  sizes = plan.unwrite_tiles(read, operands)
  found = _launch(
    read, _unwrite_kernel, "stream_read_unwrite", sizes, inputs.streams,
    inputs=(inputs, given), outputs=outputs,
  ).outputs  # fmt: skip
  streams, out = call.unfold((found.streams, found.out))
  return Pending(streams, found.weights.T.astype(weights.dtype), out)


def _unwrite_kernel(refs: call.Refs) -> None:
  inputs, given = refs.inputs
  tokens = inputs.streams.shape[1]
  rows = *call.stream_rows(inputs.streams), call.row_stream(inputs.out), call.row_stream(inputs.d_x)
  rows = *rows, *call.stream_rows(given.d_streams)
  if given.back is not None:
    rows = *rows, *call.stream_rows(given.back)
  ring = call.make_ring(refs.rings[0], rows, tokens)

  def token_backward(step: Array, _: None) -> None:
    _unwrite_token(inputs, given, refs.outputs, ring, refs.sums, step)
    ring.release(step, range(len(rows)))

  lax.fori_loop(jnp.int32(0), ring.steps, token_backward, None)


def _unwrite_token(
  inputs: _Inputs,
  given: Cotangents,
  outputs: Pending,
  ring: Ring,
  sums: ChannelSums,
  step: Array,
) -> None:
  """Writes the cotangents of a token."""
  token, (count, _, groups, _) = ring.token(step), inputs.streams.shape
  weights, read = (row_ops.numbers_of(ref, token) for ref in (inputs.weights, inputs.read))
  squares = row_ops.numbers_of(given.squares, token)
  norm = None if given.scale is None else (given.scale[token], given.shrink[token])
  sources = count + 1
  for position in range(len(ring.streams)):
    ring.wait(step, position)

  def d_part(index: Array) -> list[Array]:
    """Returns a part of the cotangent of each new stream."""
    parts = plan.written_part(ring, step, weights, index)
    d_x = ring.load_part(step, count + 1, index)
    if norm is not None:
      x = row_ops.weighted(read, parts)
      d_x = norm[0] * d_x * row_ops.load_part(inputs.gain, index) - norm[1] * x
    found = []
    for r, part in enumerate(parts):
      d = ring.load_part(step, count + 2 + r, index) + read[r] * d_x
      if squares:
        d += ring.load_part(step, 2 * count + 2 + r, index) + squares[r] * part
      found.append(d)
    return found

  def store(index: Array, d: list[Array]) -> None:
    for s in range(sources):
      part = row_ops.weighted(weights[s::sources], d)
      row_ops.store_part(outputs.out.at[token] if s == count else outputs.streams.at[s, token],
                         index, part)  # fmt: skip

  most = max(1, _HELD_SUMS // sources)
  for start in range(0, count, most):
    some = range(start, min(start + most, count))

    def add(index: Array, dots: tuple[Array, ...], some: range = some) -> tuple[Array, ...]:
      d = d_part(index)
      if not some.start:
        store(index, d)
      parts = plan.source_parts(ring, step, weights, index)
      terms = [d[r] * part for r in some for part in parts]
      return tuple(dot + term for dot, term in zip(dots, terms, strict=True))

    dots = row_ops.each_part(groups, add, row_ops.zero_parts(groups, len(some) * sources))
    for place, r in enumerate(some):
      for s in range(sources):
        sums.put(s, (dots[place * sources + s],))
      sums.reduce()
      for s in range(sources):
        outputs.weights[token, r * sources + s] = sums[s]
