"""Phase 1 of two-phase depth attention in plain JAX, without stacking the sources."""

import jax
import jax.numpy as jnp

from resjax.base import Array, PyTree
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.kernels.depth_attention.reference.each_source import (
  add_to_cotangents,
  each_source,
  sources_of,
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
  operands, queries = _zero_where_empty(operands), _queries(operands)

  def measured(source: Array) -> tuple[tuple[Array, Array], None]:
    v = wide(source)
    return (jnp.mean(v**2, axis=-1), jnp.sum(queries * v[None], axis=-1)), None

  squares, dots = each_source(measured, operands)[0]
  inverse_rms = jax.lax.rsqrt(squares + read.eps)
  logits = jnp.where(_valid(operands)[None], jnp.swapaxes(dots, 0, 1) * inverse_rms[None], -jnp.inf)
  stats = Stats(inverse_rms, logits, jax.nn.logsumexp(logits, axis=1))

  def weighted(source: Array, p: Array) -> tuple[None, Array]:
    return None, p[..., None] * wide(source)[None]

  _, out = each_source(weighted, operands, jnp.swapaxes(_weights(stats), 0, 1))
  return out.astype(operands.like.dtype), stats


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
  operands = _zero_where_empty(operands)
  queries, d_mixed, weights = _queries(operands), wide(d_out), _weights(stats)

  def scored(source: Array) -> tuple[Array, None]:
    return jnp.sum(d_mixed * wide(source)[None], axis=-1), None

  scores = jnp.swapaxes(each_source(scored, operands)[0], 0, 1)
  centre = jnp.sum(weights * scores, axis=1) - d_lse
  d_logits = weights * (scores - centre[:, None])
  d_dots = d_logits * stats.inverse_rms[None]
  # A slot that does not count has weight 0 and logit -inf.
  logits = jnp.where(_valid(operands)[None], stats.logits, 0.0)
  shrink = jnp.sum(d_dots * logits, axis=0) * stats.inverse_rms / queries.shape[-1]

  def pulled_back(source: Array, p: Array, d: Array, c: Array) -> tuple[Array, Array]:
    v, p, d = wide(source), p[..., None], d[..., None]
    of_reads = sum_of_products(p, d_mixed) + sum_of_products(d, queries)
    return of_reads - c[..., None] * v, jnp.sum(d * v[None], axis=tuple(range(1, d.ndim - 1)))

  numbers = jnp.swapaxes(weights, 0, 1), jnp.swapaxes(d_dots, 0, 1), shrink
  return Cotangents(*add_to_cotangents(pulled_back, operands, d_sources, *numbers), None)


def _valid(operands: Operands) -> Array:
  """Returns which slots are attended to: bool [N, 1, ..., 1], with one axis per token axis."""
  valid = sources_of(operands).valid()
  return valid.reshape(-1, *[1] * (operands.like.ndim - 1))


def _zero_where_empty(operands: Operands) -> Operands:
  """Returns the operands with zeros in slots that hold nothing, which may hold NaN."""
  if operands.bank is None:
    return operands
  valid = _valid(operands)[: len(operands.bank), ..., None]
  return operands._replace(bank=jnp.where(valid, operands.bank, 0))


def _queries(operands: Operands) -> Array:
  """Returns the queries as [S, 1, ..., 1, D], to be multiplied by sources [..., D]."""
  num_reads, width = operands.query.shape
  return wide(operands.query).reshape(num_reads, *[1] * (operands.like.ndim - 1), width)


def _weights(stats: Stats) -> Array:
  return jnp.exp(stats.logits - stats.lse[:, None])
