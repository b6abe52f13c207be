"""Depth attention in plain JAX, without stacking the sources."""

import functools
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
  are summed one by one: no normalised or stacked copy of them exists. The backward pass keeps
  nothing but the arguments.

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
  scaled_query = query if key_scale is None else query * key_scale
  return _attend(sources, scaled_query, jnp.asarray(last_valid), eps)


@functools.partial(jax.checkpoint, static_argnums=3)
def _attend(sources: Sources, query: Array, last_valid: Array, eps: float) -> Array:
  wide = jnp.promote_types(query.dtype, jnp.float32)
  query = query.astype(wide)

  def logit(source):  # [..., D] -> [...]
    source = source.astype(wide)
    dot = jnp.sum(source * query, axis=-1)
    return dot * jax.lax.rsqrt(jnp.mean(source * source, axis=-1) + eps)

  logits = [logit(source) for source in sources.recent]
  if logits:
    logits[-1] = jnp.where(last_valid, logits[-1], -jnp.inf)
  if sources.bank is not None:
    slots = jnp.arange(sources.bank.shape[0]).reshape(-1, *[1] * (sources.bank.ndim - 2))
    bank_logits = jnp.where(slots < sources.num_valid, logit(sources.bank), -jnp.inf)
    peak = jnp.max(bank_logits, axis=0)
  else:
    peak = logits[0]
  for s in logits:
    peak = jnp.maximum(peak, s)
  peak = jax.lax.stop_gradient(peak)

  total = mixed = 0.0
  if sources.bank is not None:
    weights = jnp.exp(bank_logits - peak)
    total = jnp.sum(weights, axis=0)
    mixed = jnp.sum(weights[..., None] * sources.bank.astype(wide), axis=0)
    dtype = sources.bank.dtype
  for s, source in zip(logits, sources.recent, strict=True):
    weight = jnp.exp(s - peak)
    total = total + weight
    mixed = mixed + weight[..., None] * source.astype(wide)
    dtype = source.dtype
  return (mixed / total[..., None]).astype(dtype)
