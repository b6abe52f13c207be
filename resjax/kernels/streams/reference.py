"""A read of residual streams in plain JAX."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from resjax.base import Array, PyTree, aligned, wide_dtype
from resjax.base.sharding import cotangent, typed_like, whole
from resjax.kernels.streams.operands import (
  FEW,
  Coefficients,
  Operands,
  Pending,
  Read,
  Stats,
  all_coefficients,
  combined,
  written,
)
from resjax.kernels.sums import sum_of_products

# Three bfloat16 passes on TPUs, tfloat32 on GPUs; one pass would round φ to 8 bits.
_einsum = partial(jnp.einsum, precision=lax.Precision.HIGH)


def forward(read: Read, operands: Operands) -> tuple[Array, Array, Array, Stats]:
  """Returns the read x [..., D], the streams, `Pending.weights`, and residuals for the reverse."""
  streams = _once(written(operands.pending))
  stats = _stats(streams, operands.projection)
  find = partial(_coefficients, read, streams, operands.pending.has_read)
  weights, mixing = _once(find(stats, operands.parameters))
  x = _read(operands.pending, streams, weights)
  if operands.gain is not None:
    x = x * _inverse_rms(x, read.norm_eps) * aligned(operands.gain, x)
  return x.astype(streams.dtype), streams, mixing, stats


def stream_coefficients(
  pending: Pending,
  projection: Float[Array, "... D K"] | None,
  parameters: PyTree,
  coefficients: Coefficients,
  site: int | None = None,
) -> tuple[Float[Array, "R ..."], Float[Array, "R R ..."] | None, Float[Array, "R ..."]]:
  """Returns p, M and b of the site that reads these streams, see `stream_read`."""
  streams = written(pending)
  if projection is not None and site is not None:
    projection = projection[site]
  spread = _spread(parameters, streams.ndim - 2)
  return coefficients(*_stats(streams, projection), spread)


def backward(
  read: Read, operands: Operands, stats: Stats, d_x: Array, d_streams: Array, d_mixing: Array
) -> Operands:
  """Returns the cotangents of the operands.

  Args:
    read: options.
    operands: of the forward pass.
    stats: kept by it.
    d_x: cotangent of the read [..., D].
    d_streams: of the streams [R, ..., D].
    d_mixing: of the weights of the next write [R (R + 1), ...].
  """
  pending, projection, parameters, gain = operands
  streams, wide = _once(written(pending)), wide_dtype(pending.out)
  count = len(streams)
  find = partial(_coefficients, read, streams, pending.has_read)
  (weights, _), pull = jax.vjp(find, stats, parameters)
  weights, d_x, d_gain = _once(weights), d_x.astype(wide), None
  if gain is not None:
    d_x, d_gain = _norm_backward(_read(pending, streams, weights), gain, read.norm_eps, d_x)
    d_x = _once(d_x)
  d_weights = jnp.zeros_like(weights)
  if not pending.has_read:
    d_weights = jnp.sum(d_x[None] * streams.astype(wide), axis=-1)
  d_stats, d_parameters = pull((d_weights, d_mixing.astype(wide)))
  # A barrier makes what is shared vary like these, and added up twice.
  d_stats = _once(d_stats)
  rows = [d_streams[r].astype(wide) for r in range(count)]
  if not pending.has_read:
    rows = [row + weights[r][..., None] * d_x for r, row in enumerate(rows)]
  d_projection = None
  if projection is not None:
    d_projection, back = _projection_backward(streams, projection, d_stats)
    rows = [row + part for row, part in zip(rows, back, strict=True)]
  if pending.has_read:
    rows.append(d_x)
  d_pending = _unwritten(pending, _once(rows))
  d_parameters = jax.tree.map(cotangent, d_parameters, parameters)
  return Operands(d_pending, d_projection, d_parameters, d_gain)


def _coefficients(
  read: Read, streams: Array, has_read: bool, stats: Stats, parameters: PyTree
) -> tuple[Array, Array]:
  """Returns `all_coefficients`; they lie as tokens do also where they are the same for all.

  The weights end with a row for the read after the next write where `has_read`.
  """
  tokens = jax.eval_shape(lambda x: jnp.sum(x, axis=(0, -1)), streams)
  spread = _spread(parameters, len(tokens.shape))
  p, weights = all_coefficients(read, len(streams), stats, spread, tokens.shape)
  if has_read:
    square = weights.reshape(len(streams), -1, *tokens.shape)
    weights = jnp.concatenate([weights, jnp.sum(p[:, None] * square, axis=0)])
  return typed_like(p, tokens), typed_like(weights, tokens)


def _stats(streams: Array, projection: Array | None) -> Stats:
  if projection is None:
    return Stats(None, None)
  wide = streams.astype(wide_dtype(streams))
  equation = "r...d,rdk->...k" if projection.ndim == 3 else "r...d,dk->r...k"
  products = _einsum(equation, wide, projection.astype(wide.dtype))
  products = jnp.moveaxis(products, -1, projection.ndim == 2)
  return Stats(products, jnp.mean(wide * wide, axis=-1))


def _projection_backward(
  streams: Array, projection: Array, d_stats: Stats
) -> tuple[Array, list[Array]]:
  """Returns the cotangents of φ and, as a list over streams, of the streams.

  Products are [K, tokens] [tokens, D] and [tokens, K] [K, D], which need no transposed streams.
  """
  wide, width = streams.astype(wide_dtype(streams)), streams.shape[-1]
  phi, d_z, shared = projection.astype(wide.dtype), d_stats.products, projection.ndim == 2
  scale = d_stats.mean_squares * (2 / width)
  # Token axes stay apart: devices would gather tokens that they share before they flatten them.
  equation = "rk...,r...d->kd" if shared else "k...,r...d->rkd"
  d_phi = _einsum(equation, d_z, wide, out_sharding=whole())
  rows = []
  for r, stream in enumerate(wide):
    of_stream = (d_z[r], phi) if shared else (d_z, phi[r])
    rows.append(_einsum("k...,dk->...d", *of_stream) + scale[r][..., None] * stream)
  return cotangent(jnp.swapaxes(d_phi, -1, -2), projection), rows


def _norm_backward(x: Array, gain: Array, eps: float, d: Array) -> tuple[Array, Array]:
  """Returns the cotangents of x and gain of RMS(x) ⊙ gain."""
  scale = _inverse_rms(x, eps)
  normed = x * scale
  d_gain = jnp.sum(d * normed, axis=tuple(range(d.ndim - 1)))
  d = d * aligned(gain, d)
  d = scale * (d - normed * jnp.mean(d * normed, axis=-1, keepdims=True))
  return d, cotangent(d_gain, gain)


def _inverse_rms(x: Array, eps: float) -> Array:
  return lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


def _read(pending: Pending, streams: Array, weights: Array) -> Array:
  """Returns what is read of the streams after the write, given p [R, ...] of this site."""
  if pending.has_read:
    return combined(pending, pending.rows[-1])
  return sum_of_products(weights[..., None], streams)


def _unwritten(pending: Pending, rows: list[Array]) -> Pending:
  """Returns the cotangents of a write's inputs, given those of its R or R + 1 rows [..., D]."""
  streams, weights, out = pending
  sources, count = [*streams, out], len(streams)
  if count > FEW:
    stacked = jnp.stack(rows)
    right = jnp.stack([source.astype(stacked.dtype) for source in sources])
    d_sources = list(_einsum("rs...,r...d->s...d", pending.rows, stacked))
    dots = jnp.sum(stacked[:, None] * right[None], axis=-1).reshape(weights.shape)
  else:
    d_sources = []
    for s in range(count + 1):
      terms = [weights[r * (count + 1) + s][..., None] * row for r, row in enumerate(rows)]
      d_sources.append(sum(terms[1:], terms[0]))
    pairs = itertools.product(rows, sources)
    dots = jnp.stack([jnp.sum(row * source.astype(row.dtype), axis=-1) for row, source in pairs])
  return Pending(
    jnp.stack([d.astype(streams.dtype) for d in d_sources[:count]]),
    cotangent(dots, weights),
    d_sources[count].astype(out.dtype),
  )


def _once(tree: PyTree) -> PyTree:
  """Makes XLA compute a tree once, not again within each of the passes that use it."""
  return lax.optimization_barrier(tree)


def _spread(parameters: PyTree, axes: int) -> PyTree:
  return jax.tree.map(lambda p: p.reshape(*p.shape, *(1,) * axes), parameters)
