"""Arithmetic of combinators. It runs in float32 or wider, whatever dtype activations have."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from resjax.base import Array, aligned, wide_dtype, wider

Number = float | Float[Array, ""]  # a float; an array inside of a function that is `recomputed`
# The reverse pass computes such a function again from its arguments. Thus it keeps these alone, in
# the dtype of the activations, and no float32 copies.
recomputed = functools.partial(jax.checkpoint, prevent_cse=False)


@recomputed
def scaled_add(
  scale: Float[Array, "..."], x: Float[Array, "... D"], y: Float[Array, "... D"]
) -> Float[Array, "... D"]:
  """Returns scale · x + y in the wider dtype of the two; scale broadcasts against them."""
  dtype = wider(x.dtype, y.dtype)
  wide = wider(dtype, jnp.float32)
  rank = max((scale, x, y), key=jnp.ndim)
  scale, x, y = (aligned(array.astype(wide), rank) for array in (scale, x, y))
  return (scale * x + y).astype(dtype)


@recomputed
def rms_normalized(x: Float[Array, "*tokens D"], eps: Number) -> Float[Array, "*tokens D"]:
  """Returns x / sqrt(mean(x²) + eps) over the last axis, float32 or wider."""
  wide = x.astype(wide_dtype(x))
  return wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)


@recomputed
def scaled_norm(
  x: Float[Array, "*tokens D"], scale: Float[Array, "... D"], eps: Number
) -> Float[Array, "*tokens D"]:
  """Returns scale ⊙ x / sqrt(mean(x²) + eps) over the last axis in the dtype of x."""
  return (aligned(scale, x) * rms_normalized(x, eps)).astype(x.dtype)


@recomputed
def standardized(x: Float[Array, "*tokens D"], eps: Number) -> Float[Array, "*tokens D"]:
  """Returns (x − mean(x)) / sqrt(var(x) + eps) over the last axis, float32 or wider."""
  wide = x.astype(wide_dtype(x))
  return rms_normalized(wide - jnp.mean(wide, axis=-1, keepdims=True), eps)


def project(
  equation: str, x: Float[Array, "..."], weight: Float[Array, "..."]
) -> Float[Array, "..."]:
  """Returns jnp.einsum(equation, x, weight) in float32 or wider."""
  wide = wide_dtype(x)
  # This is tfloat32, as in the papers, or three bfloat16 passes on TPUs. A single pass would round
  # the weight to 8 bits.
  return jnp.einsum(equation, x.astype(wide), weight.astype(wide), precision=lax.Precision.HIGH)
