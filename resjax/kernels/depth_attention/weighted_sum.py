"""Sums of depth sources with given weights."""

import jax
import jax.numpy as jnp

from resjax.kernels.depth_attention.sources import Sources
from resjax.typing import Array


def depth_sum(sources: Sources, weights: Array) -> Array:
  """h = Σ_n w_n ⊙ v_n over the sources that are there, added in float32 or wider.

  The reverse pass keeps sources and weights alone.

  Args:
    sources: N arrays [..., D] in their slots.
    weights: [slots, ...] in the order of the slots (`Sources.in_slot_order`); what follows the
      first axis broadcasts against [..., D]: one number per source, one per source and token
      [slots, ..., 1], or one per source and channel [slots, D].

  Returns:
    h [..., D] in the dtype of the sources.
  """
  recomputed = jax.checkpoint(_weighted_sum, prevent_cse=False)
  return recomputed(sources.groups(), sources.valid(), weights)


def _weighted_sum(groups: tuple[Array, ...], valid: Array, weights: Array) -> Array:
  wide = jnp.promote_types(groups[0].dtype, jnp.float32)
  # One axis per axis of a source: [slots, ...] broadcasts from the right.
  missing = (1,) * (groups[0].ndim - weights.ndim)
  weights = weights.reshape(len(weights), *missing, *weights.shape[1:]).astype(wide)
  weights = jnp.where(valid.reshape(-1, *(1,) * (weights.ndim - 1)), weights, 0)
  total, start = 0.0, 0
  for group in groups:
    end = start + len(group)
    total += jnp.sum(weights[start:end] * group.astype(wide), axis=0)
    start = end
  return total.astype(groups[0].dtype)
