"""The direct depth read in plain JAX, without stacking the sources."""

import jax
import jax.numpy as jnp

from resjax.base import Array, PyTree, aligned
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.kernels.depth_attention.reference.each_source import (
  add_to_cotangents,
  each_source,
  sources_of,
  wide,
)


def forward(read: Read, operands: Operands) -> tuple[Array, Array | None, Stats]:
  """Runs the forward pass; see `depth_attention` for the equations.

  Returns:
    The output [..., D]; the last source with the addend in it, or None; statistics.
  """
  running = None
  if read.adds:
    running = operands.recent[-1] + operands.addend
    operands = operands._replace(recent=(*operands.recent[:-1], running))
  query = _query(operands)

  def measured(source: Array) -> tuple[tuple[Array, Array], None]:
    v = wide(source)
    return (jnp.mean(v**2, axis=-1), _sum_heads(v * query, read.num_heads)), None

  squares, dots = each_source(measured, operands)[0]
  inverse_rms = jax.lax.rsqrt(squares + read.eps)
  logits = dots * _each_head(inverse_rms, read.num_heads)
  valid = _valid(operands)
  logits = jnp.where(valid.reshape(-1, *[1] * (logits.ndim - 1)), logits, -jnp.inf)
  lse = jax.nn.logsumexp(logits, axis=0)
  stats = Stats(inverse_rms, logits, lse)
  out = _mix(read, stats, operands)
  if operands.out_norm_scale is not None:
    out = out * _inverse_rms(read, out) * aligned(wide(operands.out_norm_scale), out)
  return out.astype(operands.like.dtype), running, stats


def backward(
  read: Read, operands: Operands, stats: Stats, d_out: Array, d_sources: PyTree
) -> Cotangents:
  """Runs the reverse pass; see `depth_attention` for the equations.

  Args:
    read: options, as in the forward pass.
    operands: arrays, as in the forward pass, but with the addend in the last source.
    stats: statistics of the forward pass.
    d_out: cotangent of the output [..., D].
    d_sources: cotangents of the returned bank and recent sources, to which this read adds its own;
      or None.
  """
  heads, query = read.num_heads, _query(operands)
  d_mixed, d_scale = wide(d_out), None
  if operands.out_norm_scale is not None:
    mixed = _mix(read, stats, operands)
    d_mixed, d_scale = _norm_backward(read, mixed, operands.out_norm_scale, d_mixed)

  def scored(source: Array) -> tuple[Array, None]:
    return _sum_heads(d_mixed * wide(source), heads), None

  weights, scores = _weights(stats), each_source(scored, operands)[0]
  d_logits = weights * (scores - jnp.sum(weights * scores, axis=0, keepdims=True))
  d_dot = d_logits * _each_head(stats.inverse_rms, heads)
  # A slot that does not count has weight 0 and logit -inf.
  logits = jnp.where(weights > 0, stats.logits, 0.0)
  shrink = d_dot * _each_head(stats.inverse_rms, heads) * logits
  shrink = (shrink if heads == 1 else jnp.sum(shrink, axis=-1)) / query.shape[-1]

  def pulled_back(source: Array, p: Array, d: Array, c: Array) -> tuple[Array, Array]:
    v = wide(source)
    p, d = (_to_channels(part, heads, v) for part in (p, d))
    d_query = jnp.sum(d * v, axis=tuple(range(v.ndim - 1)))
    return p * d_mixed + d * query - c[..., None] * v, d_query

  numbers = weights, d_dot, shrink
  return Cotangents(*add_to_cotangents(pulled_back, operands, d_sources, *numbers), d_scale)


def _valid(operands: Operands) -> Array:
  """Returns which slots are attended to: bool [N]."""
  valid = sources_of(operands).valid()
  return valid.at[-1].set(operands.counts[1] > 0) if operands.recent else valid


def _query(operands: Operands) -> Array:
  """Returns the query as [1, ..., 1, D], to be multiplied by sources [..., D]."""
  return wide(operands.query).reshape(*[1] * (operands.like.ndim - 1), -1)


def _weights(stats: Stats) -> Array:
  """Returns the softmax weights p [N, ...]."""
  return jnp.exp(stats.logits - stats.lse[None])


def _mix(read: Read, stats: Stats, operands: Operands) -> Array:
  """Returns h = Σ_n p_n v_n [..., D], at least in float32."""

  def weighted(source: Array, p: Array) -> tuple[None, Array]:
    v = wide(source)
    return None, _to_channels(p, read.num_heads, v) * v

  return each_source(weighted, operands, _weights(stats))[1]


def _inverse_rms(read: Read, x: Array) -> Array:
  return jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + read.out_norm_eps)


def _norm_backward(read: Read, x: Array, scale: Array, d_out: Array) -> tuple[Array, Array]:
  """Returns the cotangents of x and of scale, where d_out is that of RMS(x) ⊙ scale."""
  inverse_rms, d_normed = _inverse_rms(read, x), d_out * aligned(wide(scale), x)
  d_scale = jnp.sum(d_out * x * inverse_rms, axis=tuple(range(x.ndim - 1)))
  along = jnp.mean(d_normed * x, axis=-1, keepdims=True) * inverse_rms**2
  return inverse_rms * (d_normed - along * x), d_scale


# Numbers per source, token and head have a last axis H only if there are several heads; without it
# a read with one head takes fewer instructions.


def _sum_heads(x: Array, heads: int) -> Array:
  """Returns the sums of x [..., D] over the channels of each head."""
  return jnp.sum(x if heads == 1 else x.reshape(*x.shape[:-1], heads, -1), axis=-1)


def _each_head(x: Array, heads: int) -> Array:
  """Returns numbers [...] that all heads share with an axis that broadcasts over heads."""
  return x if heads == 1 else x[..., None]


def _to_channels(x: Array, heads: int, like: Array) -> Array:
  """Returns for each channel of `like` [..., D] the number of its head: [..., D] or [..., 1]."""
  return x[..., None] if heads == 1 else jnp.repeat(x, like.shape[-1] // heads, axis=-1)
