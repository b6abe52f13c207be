"""Phase 1 of two-phase depth attention in plain JAX, without stacking the sources."""

import jax
import jax.numpy as jnp

from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.kernels.depth_attention.sources import Sources
from resjax.typing import Array, wide_dtype


def forward(read: Read, operands: Operands) -> tuple[Array, Stats]:
  """All reads of a depth block; see `depth_attention_block` for the equations.

  Args:
    read: one head, no addend.
    operands: query [S, D], no addend and no output gain.

  Returns:
    Outputs [S, ..., D]; statistics, logits [S, N, ...] and lse [S, ...].
  """
  groups, valid, queries = _wide_groups(operands), _valid(operands), _queries(operands)
  squares = [jnp.mean(x**2, axis=-1) for x in groups]
  dots = [jnp.sum(queries * x, axis=-1) for x in groups]
  inverse_rms = jax.lax.rsqrt(jnp.concatenate(squares) + read.eps)
  logits = jnp.where(valid, jnp.concatenate(dots, axis=1) * inverse_rms, -jnp.inf)
  stats = Stats(inverse_rms, logits, jax.nn.logsumexp(logits, axis=1))
  weights = _split(_weights(stats), groups)
  out = sum(jnp.sum(p[..., None] * x, axis=1) for p, x in zip(weights, groups, strict=True))
  return out.astype(operands.like.dtype), stats


def backward(
  read: Read,
  operands: Operands,
  stats: Stats,
  d_out: Array,
  d_lse: Array,
  d_sources: tuple[Array | None, tuple[Array, ...]] | None,
) -> Cotangents:
  """Reverse pass; nothing that the forward pass mixed is read.

  Args:
    read: as in the forward pass.
    operands: as in the forward pass.
    stats: of the forward pass.
    d_out: cotangent of the outputs [S, ..., D].
    d_lse: cotangent of lse [S, ...].
    d_sources: cotangents of the returned bank and recent sources, to which those of these reads
      are added; or None.
  """
  groups, queries = _wide_groups(operands), _queries(operands)
  d_mixed, weights = _wide(d_out)[:, None], _weights(stats)
  scores = jnp.concatenate([jnp.sum(d_mixed * x, axis=-1) for x in groups], axis=1)
  centre = jnp.sum(weights * scores, axis=1) - d_lse
  d_logits = weights * (scores - centre[:, None])
  d_dots = d_logits * stats.inverse_rms
  # An invalid slot has weight 0 and logit -inf.
  logits = jnp.where(_valid(operands), stats.logits, 0.0)
  shrink = jnp.sum(d_dots * logits, axis=0) * stats.inverse_rms / groups[0].shape[-1]
  d_groups, d_query = [], 0.0
  parts = _split(weights, groups), _split(d_dots, groups), _split(shrink[None], groups)
  totals = _cotangent_groups(operands, d_sources)
  for x, total, p, d, c in zip(groups, totals, *parts, strict=True):
    p, d = p[..., None], d[..., None]
    d_group = total + jnp.sum(p * d_mixed + d * queries, axis=0) - c[0, ..., None] * x
    d_groups.append(d_group.astype(d_out.dtype))
    d_query += jnp.sum(d * x, axis=tuple(range(1, d.ndim - 1)))
  d_bank = None if operands.bank is None else d_groups.pop(0)
  return Cotangents(d_bank, tuple(d[0] for d in d_groups), d_query, None)


def _sources(operands: Operands) -> Sources:
  return Sources(operands.recent, operands.bank, operands.counts[0])


def _valid(operands: Operands) -> Array:
  """Returns which slots count: bool [N, 1, ..., 1], an axis per token axis."""
  valid = _sources(operands).valid()
  return valid.reshape(-1, *[1] * (operands.like.ndim - 1))


def _wide_groups(operands: Operands) -> list[Array]:
  """Returns arrays [n, ..., D] that hold all slots; zero is in those that do not count."""
  groups = [_wide(group) for group in _sources(operands).groups()]
  if operands.bank is not None:
    valid = _valid(operands)[: len(operands.bank), ..., None]
    groups[0] = jnp.where(valid, groups[0], 0)
  return groups


def _cotangent_groups(operands: Operands, d_sources) -> list[Array | float]:
  """Returns what the cotangent of each group is added to."""
  if d_sources is None:
    return [0.0] * len(_sources(operands).groups())
  bank, recent = d_sources
  return [_wide(group) for group in Sources(recent, bank).groups()]


def _queries(operands: Operands) -> Array:
  """Returns [S, 1, ..., 1, D], to be multiplied with [n, ..., D]."""
  num_reads, width = operands.query.shape
  return _wide(operands.query).reshape(num_reads, *[1] * operands.like.ndim, width)


def _weights(stats: Stats) -> Array:
  return jnp.exp(stats.logits - stats.lse[:, None])


def _split(joined: Array, groups: list[Array]) -> list[Array]:
  """Returns the parts of [S, N, ...] that belong to each group."""
  parts, start = [], 0
  for group in groups:
    parts.append(joined[:, start : start + len(group)])
    start += len(group)
  return parts


def _wide(x: Array) -> Array:
  return x.astype(wide_dtype(x))
