"""Phase 1 of two-phase depth attention in plain JAX, without stacking the sources."""

import jax
import jax.numpy as jnp

from resjax.base import Array, PyTree
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.kernels.depth_attention.reference.groups import (
  cotangent_groups,
  sources_of,
  split,
  wide,
)
from resjax.kernels.sums import sum_of_products


def forward(read: Read, operands: Operands) -> tuple[Array, Stats]:
  """Runs the forward pass; see `depth_attention_block` for the equations.

  Args:
    read: options: one head, no addend.
    operands: arrays: queries [S, D], no addend and no output gain.

  Returns:
    Outputs [S, ..., D]; statistics with logits [S, N, ...] and lse [S, ...].
  """
  groups, valid, queries = _wide_groups(operands), _valid(operands), _queries(operands)
  squares = [jnp.mean(x**2, axis=-1) for x in groups]
  dots = [jnp.sum(queries * x[None], axis=-1) for x in groups]
  inverse_rms = jax.lax.rsqrt(jnp.concatenate(squares) + read.eps)
  logits = jnp.where(valid[None], jnp.concatenate(dots, axis=1) * inverse_rms[None], -jnp.inf)
  stats = Stats(inverse_rms, logits, jax.nn.logsumexp(logits, axis=1))
  weights = split(jnp.swapaxes(_weights(stats), 0, 1), groups, 0)
  # Σ_n of weights [n, S, ..., 1] and sources [n, 1, ..., D].
  parts = [sum_of_products(p[..., None], x[:, None]) for p, x in zip(weights, groups, strict=True)]
  return sum(parts[1:], parts[0]).astype(operands.like.dtype), stats


def backward(
  read: Read, operands: Operands, stats: Stats, d_out: Array, d_lse: Array, d_sources: PyTree
) -> Cotangents:
  """Runs the reverse pass, which does not read the outputs of the forward pass.

  Args:
    read: options, as in the forward pass.
    operands: arrays, as in the forward pass.
    stats: statistics of the forward pass.
    d_out: cotangent of the outputs [S, ..., D].
    d_lse: cotangent of lse [S, ...].
    d_sources: cotangents of the returned bank and recent sources, to which these reads add theirs;
      or None.
  """
  groups, queries = _wide_groups(operands), _queries(operands)
  d_mixed, weights = wide(d_out)[:, None], _weights(stats)
  scores = jnp.concatenate([jnp.sum(d_mixed * x[None], axis=-1) for x in groups], axis=1)
  centre = jnp.sum(weights * scores, axis=1) - d_lse
  d_logits = weights * (scores - centre[:, None])
  d_dots = d_logits * stats.inverse_rms[None]
  # A slot that does not count has weight 0 and logit -inf.
  logits = jnp.where(_valid(operands)[None], stats.logits, 0.0)
  shrink = jnp.sum(d_dots * logits, axis=0) * stats.inverse_rms / groups[0].shape[-1]
  d_groups, d_queries = [], []
  parts = [split(part, groups, 1) for part in (weights, d_dots, shrink[None])]
  for x, total, p, d, c in zip(groups, cotangent_groups(operands, d_sources), *parts, strict=True):
    p, d = p[..., None], d[..., None]
    of_reads = sum_of_products(p, d_mixed) + sum_of_products(d, queries)
    d_group = total + of_reads - c[0, ..., None] * x
    d_groups.append(d_group.astype(d_out.dtype))
    d_queries.append(jnp.sum(d * x[None], axis=tuple(range(1, d.ndim - 1))))
  d_bank = None if operands.bank is None else d_groups.pop(0)
  d_query = sum(d_queries[1:], d_queries[0])
  return Cotangents(d_bank, tuple(d[0] for d in d_groups), d_query, None)


def _valid(operands: Operands) -> Array:
  """Returns which slots are attended to: bool [N, 1, ..., 1], with one axis per token axis."""
  valid = sources_of(operands).valid()
  return valid.reshape(-1, *[1] * (operands.like.ndim - 1))


def _wide_groups(operands: Operands) -> list[Array]:
  """Returns arrays [n, ..., D] that together hold all slots; a slot without a source is zero."""
  groups = [wide(group) for group in sources_of(operands).groups()]
  if operands.bank is not None:
    valid = _valid(operands)[: len(operands.bank), ..., None]
    groups[0] = jnp.where(valid, groups[0], 0)
  return groups


def _queries(operands: Operands) -> Array:
  """Returns the queries as [S, 1, ..., 1, D], to be multiplied by groups [n, ..., D]."""
  num_reads, width = operands.query.shape
  return wide(operands.query).reshape(num_reads, *[1] * operands.like.ndim, width)


def _weights(stats: Stats) -> Array:
  return jnp.exp(stats.logits - stats.lse[:, None])
