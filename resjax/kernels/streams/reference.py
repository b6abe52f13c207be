"""A read of residual streams in plain JAX."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from resjax.kernels.streams.operands import (
  Coefficients,
  Operands,
  Pending,
  Read,
  Stats,
  all_coefficients,
  written,
)
from resjax.typing import Array, PyTree, wide_dtype

# Three bfloat16 passes on TPUs, tfloat32 on GPUs; one pass would round φ to 8 bits.
_einsum = partial(jnp.einsum, precision=lax.Precision.HIGH)


def forward(read: Read, operands: Operands) -> tuple[Array, Array, Array, Stats]:
  """Returns what is read x [..., D], the streams, `Pending.weights` and what the reverse keeps."""
  streams = written(operands.pending)
  stats, tokens = _stats(streams, operands.projection), streams.shape[1:-1]
  parameters = _spread(operands.parameters, len(tokens))
  weights, mixing = all_coefficients(read, len(streams), stats, parameters, tokens)
  x = _mixed(streams, weights)
  if operands.gain is not None:
    x = x * _inverse_rms(x, read.norm_eps) * operands.gain
  return x.astype(streams.dtype), streams, mixing, stats


def stream_coefficients(
  pending: Pending, projection: Array | None, parameters: PyTree, coefficients: Coefficients
) -> tuple[Array, Array | None, Array]:
  """Returns p, M and b of the site that reads these streams, see `stream_read`."""
  streams = written(pending)
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
    d_x: cotangent of what was read [..., D].
    d_streams: of the streams [R, ..., D].
    d_mixing: of the weights of the next write [R (R + 1), ...].
  """
  (before, old, out), projection, parameters, gain = operands
  streams, wide = written(operands.pending), wide_dtype(before)
  count, tokens = len(streams), streams.shape[1:-1]
  spread = _spread(parameters, len(tokens))
  (weights, _), pull = jax.vjp(
    lambda stats, parameters: all_coefficients(read, count, stats, parameters, tokens),
    stats,
    spread,
  )
  d_x, d_gain = d_x.astype(wide), None
  if gain is not None:
    d_x, d_gain = _norm_backward(_mixed(streams, weights), gain, read.norm_eps, d_x)
  d_weights = jnp.sum(d_x[None] * streams.astype(wide), axis=-1)
  d_stats, d_spread = pull((d_weights, d_mixing.astype(wide)))
  rows = [d_streams[r].astype(wide) + weights[r][..., None] * d_x for r in range(count)]
  d_projection = None
  if projection is not None:
    d_projection, back = _projection_backward(streams, projection, d_stats)
    rows = [row + part for row, part in zip(rows, back, strict=True)]
  stacked = jnp.stack(rows)
  # A product, not a sum of rows: XLA would compute each row again for every source.
  square = old.reshape(count, count + 1, *tokens)
  d_sources = _einsum("rs...,r...d->s...d", square, stacked)
  pending = Pending(
    d_sources[:count].astype(before.dtype),
    _dots(stacked, [*before, out]).astype(old.dtype),
    d_sources[count].astype(out.dtype),
  )
  d_parameters = jax.tree.map(lambda d, p: d.reshape(p.shape).astype(p.dtype), d_spread, parameters)
  return Operands(pending, d_projection, d_parameters, d_gain)


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
  wide, count = streams.astype(wide_dtype(streams)), len(streams)
  width, shared = wide.shape[-1], projection.ndim == 2
  phi = jnp.broadcast_to(projection.astype(wide.dtype), (count, width, projection.shape[-1]))
  d_z = jnp.broadcast_to(d_stats.products, (count, *d_stats.products.shape[1 if shared else 0 :]))
  scale = d_stats.mean_squares * (2 / width)
  rows, d_phi = [], []
  for r in range(count):
    # Token axes stay apart: devices would gather tokens that they share before they flatten them.
    d_phi.append(_einsum("k...,...d->kd", d_z[r], wide[r]).T)
    back = _einsum("k...,dk->...d", d_z[r], phi[r])
    rows.append(back + scale[r][..., None] * wide[r])
  d_projection = jnp.stack(d_phi)
  d_projection = jnp.sum(d_projection, axis=0) if shared else d_projection
  return d_projection.astype(projection.dtype), rows


def _norm_backward(x: Array, gain: Array, eps: float, d: Array) -> tuple[Array, Array]:
  """Returns the cotangents of x and gain of RMS(x) ⊙ gain."""
  scale = _inverse_rms(x, eps)
  normed = x * scale
  d_gain = jnp.sum(d * normed, axis=tuple(range(d.ndim - 1)))
  d = d * gain
  d = scale * (d - normed * jnp.mean(d * normed, axis=-1, keepdims=True))
  return d, d_gain.astype(gain.dtype)


def _inverse_rms(x: Array, eps: float) -> Array:
  return lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


def _mixed(streams: Array, weights: Array) -> Array:
  """Returns Σ_r p_r H_r [..., D] in float32 or wider."""
  wide = wide_dtype(streams)
  parts = [weights[r][..., None] * streams[r].astype(wide) for r in range(len(streams))]
  return sum(parts[1:], parts[0])


def _dots(rows: Array, sources: list[Array]) -> Array:
  """Returns ⟨row, source⟩ of all pairs [rows · sources, ...]."""
  right = jnp.stack([source.astype(rows.dtype) for source in sources])
  dots = jnp.sum(rows[:, None] * right[None], axis=-1)
  return dots.reshape(-1, *dots.shape[2:])


def _spread(parameters: PyTree, axes: int) -> PyTree:
  """Returns parameters with axes of size 1 for the token axes."""
  return jax.tree.map(lambda p: p.reshape(*p.shape, *(1,) * axes), parameters)
