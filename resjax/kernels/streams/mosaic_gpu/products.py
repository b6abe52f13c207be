"""Products with φ, by XLA: between bfloat16 arrays if the streams are bfloat16.

A float32 factor is then the sum of two bfloat16 arrays, 16 bits of it. XLA would convert streams to
float32 in memory if it were given one as it is.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

from resjax.base import Array
from resjax.kernels.streams.operands import in_parts


def products(streams: Array, phi: Array) -> Array:
  """Returns H_r φ_r [R, T, K] float32 of streams [R, T, D] and φ [R, D, K]."""
  if streams.dtype == jnp.float32:
    return _dot(streams, phi, 2, 1)
  found = _dot(streams, jnp.concatenate(in_parts(phi), axis=2), 2, 1)
  high, low = jnp.split(found, 2, axis=2)
  return high + low


def products_back(d: Array, phi: Array, dtype: jnp.dtype) -> Array:
  """Returns d_r φ_rᵀ [R, T, D] in `dtype`, of d [R, T, K] and φ [R, D, K]."""
  if dtype == jnp.float32:
    return _dot(d, phi, 2, 2)
  (high, low), (phi_high, phi_low) = in_parts(d), in_parts(phi)
  left = jnp.concatenate([high, high, low], axis=2)
  right = jnp.concatenate([phi_high, phi_low, phi_high], axis=2)
  return _dot(left, right, 2, 2, dtype)


def products_phi(streams: Array, d: Array) -> Array:
  """Returns H_rᵀ d_r [R, D, K] float32, of streams [R, T, D] and d [R, T, K]."""
  if streams.dtype == jnp.float32:
    return _dot(streams, d, 1, 1)
  high, low = jnp.split(_dot(streams, jnp.concatenate(in_parts(d), axis=2), 1, 1), 2, axis=2)
  return high + low


def _dot(
  left: Array, right: Array, left_axis: int, right_axis: int, dtype: Any = jnp.float32
) -> Array:
  numbers = (((left_axis,), (right_axis,)), ((0,), (0,)))
  exact = lax.Precision.HIGHEST if left.dtype == jnp.float32 else lax.Precision.DEFAULT
  return lax.dot_general(left, right, numbers, precision=exact, preferred_element_type=dtype)
