"""Sums of depth sources with given weights, and with weights that depend on the sources."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from resjax.base import Array, aligned, wide_dtype
from resjax.kernels.depth_attention.sources import Sources
from resjax.kernels.sums import sum_of_products


def depth_sum(sources: Sources, weights: Float[Array, "slots ..."]) -> Float[Array, "*tokens D"]:
  """Returns the weighted sum of the sources that are valid, added in float32 or wider.

  h = Σ_n w_n ⊙ v_n

  The reverse pass keeps the sources and the weights, nothing else.

  Args:
    sources: N arrays [..., D] in their slots.
    weights: [slots, ...] in the order of the slots (`Sources.in_slot_order`). The axes after the
      first broadcast against [..., D]: one number per source [slots], one per source and token
      [slots, ..., 1], or one per source and channel [slots, D].

  Returns:
    h [..., D] in the dtype of the sources.
  """
  recomputed = jax.checkpoint(_depth_sum, prevent_cse=False)
  return recomputed(sources, weights)


def gated_depth_sum(
  sources: Sources, weights: Float[Array, "slots ..."], query: Float[Array, " D"]
) -> Float[Array, "*tokens D"]:
  """Returns a weighted sum with a gate per source and token, added in float32 or wider.

  h = Σ_n (w_n + relu(q · v_n)) ⊙ v_n over the sources that are valid

  The weights may differ by channel, the gates do not. The two sums are taken separately, so that no
  array of N · D weights per token exists. The reverse pass keeps the sources, the weights and the
  query, nothing else.

  Args:
    sources: N arrays [..., D] in their slots.
    weights: as in `depth_sum`, without token axes: [slots] or [slots, D].
    query: q.

  Returns:
    h in the dtype of the sources.
  """
  recomputed = jax.checkpoint(_gated_depth_sum, prevent_cse=False)
  return recomputed(sources, weights, query)


def _depth_sum(sources: Sources, weights: Array) -> Array:
  groups = sources.groups()
  return _wide_sum(groups, sources.valid(), weights).astype(groups[0].dtype)


def _gated_depth_sum(sources: Sources, weights: Array, query: Array) -> Array:
  groups, valid = sources.groups(), sources.valid()
  wide = wide_dtype(groups[0])
  query = aligned(query.astype(wide), groups[0])
  dots = [jnp.sum(group.astype(wide) * query, axis=-1) for group in groups]
  gates = jax.nn.relu(jnp.concatenate(dots))[..., None]
  h = _wide_sum(groups, valid, weights) + _wide_sum(groups, valid, gates)
  return h.astype(groups[0].dtype)


def _wide_sum(groups: tuple[Array, ...], valid: Array, weights: Array) -> Array:
  """Returns the weighted sum of all valid slots [..., D], at least in float32."""
  wide = wide_dtype(groups[0])
  # The weights get as many axes as a group has, so that they broadcast from the right.
  missing = (1,) * (groups[0].ndim - weights.ndim)
  weights = weights.reshape(len(weights), *missing, *weights.shape[1:]).astype(wide)
  weights = jnp.where(valid.reshape(-1, *(1,) * (weights.ndim - 1)), weights, 0)
  parts, start = [], 0
  for group in groups:
    end = start + len(group)
    parts.append(sum_of_products(weights[start:end], group))
    start = end
  return sum(parts[1:], parts[0])
