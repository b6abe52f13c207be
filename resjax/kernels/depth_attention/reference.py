"""Depth attention in plain JAX, without stacking the sources."""

import functools
import itertools
from collections.abc import Sequence

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
  valid = sources.valid()
  if sources.recent:
    valid = valid.at[-1].set(last_valid)
  scaled_query = query if key_scale is None else query * key_scale
  return _attend(eps, sources.groups(), valid, scaled_query)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(eps: float, groups: tuple[Array, ...], valid: Array, query: Array) -> Array:
  """Attends over the slots of all groups [n, ..., D] that are valid [N]; at least one is."""
  return _attend_forward(eps, groups, valid, query)[0]


def _attend_forward(eps, groups, valid, query):
  wide_query = _wide(query)
  # What is one number per source and token is joined over groups, the sources never are.
  squares = [jnp.mean(_wide(group) ** 2, axis=-1) for group in groups]
  dots = [jnp.sum(_wide(group) * wide_query, axis=-1) for group in groups]
  inverse_rms = jax.lax.rsqrt(jnp.concatenate(squares) + eps)
  logits = jnp.concatenate(dots) * inverse_rms
  logits = jnp.where(valid.reshape(-1, *[1] * (logits.ndim - 1)), logits, -jnp.inf)
  lse = jax.nn.logsumexp(logits, axis=0)
  weights = _split(jnp.exp(logits - lse), groups)
  mixed = sum(
    jnp.sum(p[..., None] * _wide(group), axis=0) for p, group in zip(weights, groups, strict=True)
  )
  return mixed.astype(groups[0].dtype), (groups, query, inverse_rms, logits, lse)


def _attend_backward(eps, residuals, d_out):
  groups, query, inverse_rms, logits, lse = residuals
  d_out, wide_query = _wide(d_out), _wide(query)
  weights = jnp.exp(logits - lse)
  scores = jnp.concatenate([jnp.sum(d_out * _wide(group), axis=-1) for group in groups])
  d_dot = weights * (scores - jnp.sum(weights * scores, axis=0)) * inverse_rms
  # An invalid slot has weight 0 and logit -inf.
  logits = jnp.where(weights > 0, logits, 0.0)
  shrink = d_dot * inverse_rms * logits / groups[0].shape[-1]
  d_groups, d_query = [], 0.0
  parts = [_split(part[..., None], groups) for part in (weights, d_dot, shrink)]
  for group, p, d, c in zip(groups, *parts, strict=True):
    x = _wide(group)
    d_groups.append((p * d_out + d * wide_query - c * x).astype(group.dtype))
    d_query += jnp.sum(d * x, axis=tuple(range(x.ndim - 1)))
  return tuple(d_groups), None, d_query.astype(query.dtype)


_attend.defvjp(_attend_forward, _attend_backward)


def _split(joined: Array, groups: tuple[Array, ...]) -> list[Array]:
  """Returns the parts of [N, ...] that belong to each group."""
  ends = list(itertools.accumulate(len(group) for group in groups))
  return jnp.split(joined, ends[:-1])


def _wide(x: Array) -> Array:
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))
