"""Depth attention in plain JAX, without stacking the sources."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from resjax.kernels.depth_attention.sources import Sources
from resjax.typing import Array


def depth_attention(
  sources: Sources | Sequence[Array],
  query: Array,
  *,
  key_scale: Array | None = None,
  eps: float = 1e-6,
  last_valid: Array | bool = True,
) -> Array:
  """Softmax attention of one query over depth sources, separately for every token.

  s_n = query · (key_scale ⊙ RMS(v_n)),  p = softmax_n(s),  h = Σ_n p_n v_n
  with RMS(v) = v / sqrt(mean(v²) + eps). Values are raw; there is no 1/√D.

  key_scale is folded into the query once, the norm is a scalar per source and token, and sources
  are summed one by one: no normalised or stacked copy of them exists. The reverse pass keeps the
  sources and 2 N + 1 scalars per token:

  e_n = dh · v_n,  ds_n = p_n (e_n − Σ_m p_m e_m),  g = query ⊙ key_scale,  r_n = 1/sqrt(...)
  dv_n = p_n dh + ds_n r_n g − (ds_n s_n r_n² / D) v_n,   dg = Σ_tokens Σ_n ds_n r_n v_n

  Args:
    sources: N arrays [..., D], or `Sources`.
    query: pseudo-query [D].
    key_scale: gain of the key norm [D]; None is 1.
    eps: added to the mean square of a source.
    last_valid: whether the last of `sources` (of `Sources.recent`) counts; may be traced.

  Returns:
    h [..., D] in the dtype of the sources; logits, softmax and sum are at least float32.

  Source: Attention Residuals, arXiv 2603.15031, section 3.
  """
  if not isinstance(sources, Sources):
    sources = Sources(recent=tuple(sources))
  groups = [] if sources.bank is None else [sources.bank]
  groups += [source[None] for source in sources.recent]
  valid = _valid(sources, jnp.asarray(last_valid))
  scaled_query = query if key_scale is None else query * key_scale
  return _attend(eps, tuple(groups), valid, scaled_query)


def _valid(sources: Sources, last_valid: Array) -> tuple[Array, ...]:
  """Returns for each group which of its slots count, [N]."""
  valid = [jnp.ones(1, bool) for _ in sources.recent]
  if valid:
    valid[-1] = last_valid[None]
  if sources.bank is not None:
    valid.insert(0, jnp.arange(sources.bank.shape[0]) < sources.num_valid)
  return tuple(valid)


class _Read(NamedTuple):
  """Scalars per token of a read: of each group 1/rms and logit [N, ...], and log Σ exp(logit)."""

  rms: tuple[Array, ...]
  logits: tuple[Array, ...]
  lse: Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(eps: float, groups: tuple[Array, ...], valid: tuple[Array, ...], query: Array) -> Array:
  """Attends over all slots of groups [N, ..., D] that are valid [N]; at least one is."""
  return _attend_forward(eps, groups, valid, query)[0]


def _attend_forward(eps, groups, valid, query):
  wide_query = _wide(query)
  rms, logits = [], []
  for group, counts in zip(groups, valid, strict=True):
    x = _wide(group)
    rms.append(jax.lax.rsqrt(jnp.mean(x * x, axis=-1) + eps))
    logit = jnp.sum(x * wide_query, axis=-1) * rms[-1]
    logits.append(jnp.where(counts.reshape(-1, *[1] * (logit.ndim - 1)), logit, -jnp.inf))
  peak = functools.reduce(jnp.maximum, [jnp.max(logit, axis=0) for logit in logits])
  weights = [jnp.exp(logit - peak) for logit in logits]
  total = sum(jnp.sum(weight, axis=0) for weight in weights)
  mixed = sum(
    jnp.sum(weight[..., None] * _wide(group), axis=0)
    for weight, group in zip(weights, groups, strict=True)
  )
  out = (mixed / total[..., None]).astype(groups[0].dtype)
  return out, (groups, query, _Read(tuple(rms), tuple(logits), peak + jnp.log(total)))


def _attend_backward(eps, residuals, d_out):
  groups, query, read = residuals
  d_out, wide_query = _wide(d_out), _wide(query)
  weights = [jnp.exp(logit - read.lse) for logit in read.logits]
  scores = [jnp.sum(d_out * _wide(group), axis=-1) for group in groups]
  mean = sum(jnp.sum(p * e, axis=0) for p, e in zip(weights, scores, strict=True))
  d_groups, d_query = [], 0.0
  for group, p, e, r, s in zip(groups, weights, scores, read.rms, read.logits, strict=True):
    d_dot = p * (e - mean) * r
    # An invalid slot has logit -inf and weight 0.
    shrink = d_dot * r * jnp.where(p > 0, s, 0.0) / group.shape[-1]
    x = _wide(group)
    d_group = p[..., None] * d_out + d_dot[..., None] * wide_query - shrink[..., None] * x
    d_groups.append(d_group.astype(group.dtype))
    d_query += jnp.sum(d_dot[..., None] * x, axis=tuple(range(x.ndim - 1)))
  return tuple(d_groups), None, d_query.astype(query.dtype)


_attend.defvjp(_attend_forward, _attend_backward)


def _wide(x: Array) -> Array:
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))
