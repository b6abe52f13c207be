"""Depth attention in plain JAX, without stacking the sources."""

import itertools

import jax
import jax.numpy as jnp

from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.typing import Array, wide_dtype


def forward(read: Read, operands: Operands) -> tuple[Array, Array | None, Stats]:
  """Reads; see `depth_attention` for the equations.

  Returns:
    The output [..., D]; the last source with the addend in it, or None; statistics.
  """
  running = None
  if read.adds:
    running = operands.recent[-1] + operands.addend
    operands = operands._replace(recent=(*operands.recent[:-1], running))
  heads, groups = read.num_heads, _groups(operands)
  wide_query = _wide(operands.query)
  # What is a few numbers per source and token is joined over groups, the sources never are.
  squares = [jnp.mean(_wide(group) ** 2, axis=-1) for group in groups]
  dots = [_sum_heads(_wide(group) * wide_query, heads) for group in groups]
  inverse_rms = jax.lax.rsqrt(jnp.concatenate(squares) + read.eps)
  logits = jnp.concatenate(dots) * _each_head(inverse_rms, heads)
  valid = _valid(operands)
  logits = jnp.where(valid.reshape(-1, *[1] * (logits.ndim - 1)), logits, -jnp.inf)
  lse = jax.nn.logsumexp(logits, axis=0)
  stats = Stats(inverse_rms, logits, lse)
  out = _mix(read, stats, groups)
  if operands.out_norm_scale is not None:
    out = out * _inverse_rms(read, out) * _wide(operands.out_norm_scale)
  return out.astype(groups[0].dtype), running, stats


def backward(
  read: Read,
  operands: Operands,
  stats: Stats,
  d_out: Array,
  d_sources: tuple[Array | None, tuple[Array, ...]] | None,
) -> Cotangents:
  """Reverse pass.

  Args:
    read: as in the forward pass.
    operands: as in the forward pass, the addend joined to the last source.
    stats: of the forward pass.
    d_out: cotangent of the output [..., D].
    d_sources: cotangents of the returned bank and recent sources, to which those of this read are
      added; or None.
  """
  heads, groups = read.num_heads, _groups(operands)
  wide_query, d_mixed, d_scale = _wide(operands.query), _wide(d_out), None
  if operands.out_norm_scale is not None:
    mixed = _mix(read, stats, groups)
    d_mixed, d_scale = _norm_backward(read, mixed, operands.out_norm_scale, d_mixed)
  weights = jnp.exp(stats.logits - stats.lse)
  scores = jnp.concatenate([_sum_heads(d_mixed * _wide(group), heads) for group in groups])
  d_logits = weights * (scores - jnp.sum(weights * scores, axis=0))
  d_dot = d_logits * _each_head(stats.inverse_rms, heads)
  # An invalid slot has weight 0 and logit -inf.
  logits = jnp.where(weights > 0, stats.logits, 0.0)
  shrink = d_dot * _each_head(stats.inverse_rms, heads) * logits
  shrink = (shrink if heads == 1 else jnp.sum(shrink, axis=-1)) / groups[0].shape[-1]
  totals = _cotangent_groups(operands, d_sources)
  d_groups, d_query = [], 0.0
  parts = [_split(part, groups) for part in (weights, d_dot, shrink)]
  for group, total, p, d, c in zip(groups, totals, *parts, strict=True):
    x = _wide(group)
    p, d = (_to_channels(part, heads, group) for part in (p, d))
    d_group = total + p * d_mixed + d * wide_query - c[..., None] * x
    d_groups.append(d_group.astype(group.dtype))
    d_query += jnp.sum(d * x, axis=tuple(range(x.ndim - 1)))
  d_bank = None if operands.bank is None else d_groups.pop(0)
  return Cotangents(d_bank, tuple(d[0] for d in d_groups), d_query, d_scale)


def _groups(operands: Operands) -> tuple[Array, ...]:
  """Returns arrays [n, ..., D] that hold all slots."""
  bank = () if operands.bank is None else (operands.bank,)
  return (*bank, *(source[None] for source in operands.recent))


def _valid(operands: Operands) -> Array:
  """Returns which slots count: bool [N]."""
  num_valid, last = operands.counts
  valid = jnp.ones(len(operands.recent), bool)
  if operands.recent:
    valid = valid.at[-1].set(last > 0)
  if operands.bank is None:
    return valid
  return jnp.concatenate([jnp.arange(len(operands.bank)) < num_valid, valid])


def _cotangent_groups(operands: Operands, d_sources) -> tuple[Array | float, ...]:
  """Returns what the cotangent of each group is added to."""
  if d_sources is None:
    return (0.0,) * len(_groups(operands))
  bank, recent = d_sources
  return tuple(_wide(group) for group in _groups(operands._replace(bank=bank, recent=recent)))


def _mix(read: Read, stats: Stats, groups: tuple[Array, ...]) -> Array:
  weights = _split(jnp.exp(stats.logits - stats.lse), groups)
  return sum(
    jnp.sum(_to_channels(p, read.num_heads, group) * _wide(group), axis=0)
    for p, group in zip(weights, groups, strict=True)
  )


def _inverse_rms(read: Read, x: Array) -> Array:
  return jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + read.eps)


def _norm_backward(read: Read, x: Array, scale: Array, d_out: Array) -> tuple[Array, Array]:
  """Cotangents of x and scale of x · r · scale, r the inverse RMS of x."""
  inverse_rms, d_normed = _inverse_rms(read, x), d_out * _wide(scale)
  d_scale = jnp.sum(d_out * x * inverse_rms, axis=tuple(range(x.ndim - 1)))
  along = jnp.mean(d_normed * x, axis=-1, keepdims=True) * inverse_rms**2
  return inverse_rms * (d_normed - along * x), d_scale


# Numbers per source, token and head are [..., H], or [...] for one head: the fewest instructions.


def _sum_heads(x: Array, heads: int) -> Array:
  """Sums [..., D] over the channels of each head."""
  return jnp.sum(x if heads == 1 else x.reshape(*x.shape[:-1], heads, -1), axis=-1)


def _each_head(x: Array, heads: int) -> Array:
  """Gives every head what all share, [...]."""
  return x if heads == 1 else x[..., None]


def _to_channels(x: Array, heads: int, like: Array) -> Array:
  """Gives the channels of `like` [..., D] the number of their head: [..., D] or [..., 1]."""
  return x[..., None] if heads == 1 else jnp.repeat(x, like.shape[-1] // heads, axis=-1)


def _split(joined: Array, groups: tuple[Array, ...]) -> list[Array]:
  """Returns the parts of [N, ...] that belong to each group."""
  ends = list(itertools.accumulate(len(group) for group in groups))
  return jnp.split(joined, ends[:-1])


def _wide(x: Array) -> Array:
  return x.astype(wide_dtype(x))
