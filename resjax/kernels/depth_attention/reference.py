"""Depth attention in plain JAX, without stacking the sources."""

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from resjax.kernels.depth_attention.sources import Sources
from resjax.typing import Array, wide_dtype


def depth_attention(
  sources: Sources | Sequence[Array],
  query: Array,
  *,
  key_scale: Array | None = None,
  num_heads: int = 1,
  eps: float = 1e-6,
  last_valid: Array | bool = True,
) -> Array:
  """Softmax attention of one query over depth sources, separately for every token.

  s_n = query · (key_scale ⊙ RMS(v_n)),  p = softmax_n(s),  h = Σ_n p_n v_n
  with RMS(v) = v / sqrt(mean(v²) + eps). Values are raw; there is no 1/√D. With H heads, head a
  owns C = D / H consecutive channels: its dot product s_an sums over these alone, it has a softmax
  p_an over the sources of its own, and mixes its channels of v_n. The RMS is over all D.

  key_scale is folded into the query once, the norm is a scalar per source and token, and sources
  are summed one by one: no normalised or stacked copy of them exists. The reverse pass keeps the
  sources and (N + 1) H + N scalars per token, N the number of slots; ⟨·, ·⟩_a sums over the
  channels of head a:

  e_an = ⟨dh, v_n⟩_a,  ds_an = p_an (e_an − Σ_m p_am e_am),  g = query ⊙ key_scale
  r_n = 1/sqrt(mean(v_n²) + eps),   dg = Σ_tokens Σ_n ds_an r_n v_n
  dv_n = p_an dh + ds_an r_n g − (Σ_b ds_bn s_bn) r_n² / D v_n    (a: the head of the channel)

  Args:
    sources: N arrays [..., D], or `Sources`.
    query: pseudo-query [D].
    key_scale: gain of the key norm [D]; None is 1.
    num_heads: H, a divisor of D.
    eps: added to the mean square of a source.
    last_valid: whether the last of `sources` (of `Sources.recent`) counts; may be traced.

  Returns:
    h [..., D] in the dtype of the sources; logits, softmax and sum are at least float32.

  Source: Attention Residuals, arXiv 2603.15031, section 3; with heads, arXiv 2607.27230.
  """
  if not isinstance(sources, Sources):
    sources = Sources(recent=tuple(sources))
  valid = sources.valid()
  if sources.recent:
    valid = valid.at[-1].set(last_valid)
  scaled_query = query if key_scale is None else query * key_scale
  return _attend(num_heads, eps, sources.groups(), valid, scaled_query)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(heads: int, eps: float, groups: tuple[Array, ...], valid: Array, query: Array) -> Array:
  """Attends over the slots of all groups [n, ..., D] that are valid [N]; at least one is."""
  return _attend_forward(heads, eps, groups, valid, query)[0]


def _attend_forward(heads, eps, groups, valid, query):
  wide_query = _wide(query)
  # What is a few numbers per source and token is joined over groups, the sources never are.
  squares = [jnp.mean(_wide(group) ** 2, axis=-1) for group in groups]
  dots = [_sum_heads(_wide(group) * wide_query, heads) for group in groups]
  inverse_rms = jax.lax.rsqrt(jnp.concatenate(squares) + eps)
  logits = jnp.concatenate(dots) * _each_head(inverse_rms, heads)
  logits = jnp.where(valid.reshape(-1, *[1] * (logits.ndim - 1)), logits, -jnp.inf)
  lse = jax.nn.logsumexp(logits, axis=0)
  weights = _split(jnp.exp(logits - lse), groups)
  mixed = sum(
    jnp.sum(_to_channels(p, heads, group) * _wide(group), axis=0)
    for p, group in zip(weights, groups, strict=True)
  )
  return mixed.astype(groups[0].dtype), (groups, query, inverse_rms, logits, lse)


def _attend_backward(heads, eps, residuals, d_out):
  groups, query, inverse_rms, logits, lse = residuals
  d_out, wide_query = _wide(d_out), _wide(query)
  weights = jnp.exp(logits - lse)
  scores = jnp.concatenate([_sum_heads(d_out * _wide(group), heads) for group in groups])
  d_logits = weights * (scores - jnp.sum(weights * scores, axis=0))
  d_dot = d_logits * _each_head(inverse_rms, heads)
  # An invalid slot has weight 0 and logit -inf.
  shrink = d_dot * _each_head(inverse_rms, heads) * jnp.where(weights > 0, logits, 0.0)
  shrink = (shrink if heads == 1 else jnp.sum(shrink, axis=-1)) / groups[0].shape[-1]
  d_groups, d_query = [], 0.0
  parts = [_split(part, groups) for part in (weights, d_dot, shrink)]
  for group, p, d, c in zip(groups, *parts, strict=True):
    x = _wide(group)
    p, d = (_to_channels(part, heads, group) for part in (p, d))
    d_groups.append((p * d_out + d * wide_query - c[..., None] * x).astype(group.dtype))
    d_query += jnp.sum(d * x, axis=tuple(range(x.ndim - 1)))
  return tuple(d_groups), None, d_query.astype(query.dtype)


_attend.defvjp(_attend_forward, _attend_backward)


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
