"""Products with the weights of a gated read, by XLA.

Factors are rounded to the dtype of the streams, as they are elsewhere; sums are float32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array
from resjax.kernels.gated_streams.operands import Operands


class WeightGradients(NamedTuple):
  """The cotangents of W_down, W_up and W_inject, the last None without it."""

  down: Array
  up: Array
  inject: Array | None


def project(normed: Array, operands: Operands) -> tuple[Array, Array | None]:
  """Returns z [T, r] and the logits [R, T], or None, of R̂ [T, R, D]; all float32."""
  found = _product("tsd,sdk->tk", normed, _inward(operands), jnp.float32) / normed.shape[1]
  rank = operands.down.shape[-1]
  return found[:, :rank], None if operands.inject is None else found[:, rank:].T


def gates(squeezed: Array, operands: Operands) -> Array:
  """Returns silu(z) W_up [T, R, D] of z [T, r], which a sigmoid makes gates."""
  dtype = operands.streams.dtype
  inner = jax.nn.silu(squeezed).astype(dtype)
  return _product("tk,skd->tsd", inner, operands.up.astype(dtype), dtype)


def products_back(
  squeezed: Array, d_opened: Array, d_logits: Array | None, operands: Operands
) -> Array:
  """Returns the cotangents of Σ_s R̂_s [W_down, W_inject]_s [T, r or r + R], rounded.

  Args:
    squeezed: z [T, r].
    d_opened: cotangent of silu(z) W_up [T, R, D].
    d_logits: that of the logits [R, T], or None.
    operands: of the read.
  """
  dtype, count = d_opened.dtype, d_opened.shape[1]
  d_inner = _product("tsd,skd->tk", d_opened, operands.up.astype(dtype), jnp.float32)
  (d,) = jax.vjp(jax.nn.silu, squeezed)[1](d_inner)
  if d_logits is not None:
    d = jnp.concatenate([d, d_logits.astype(jnp.float32).T], axis=1)
  return (d / count).astype(dtype)


def back(d_products: Array, operands: Operands) -> Array:
  """Returns what products with `products_back` add to the cotangent of R̂ [T, R, D]."""
  return _product("tk,sdk->tsd", d_products, _inward(operands), d_products.dtype)


def weights_back(
  squeezed: Array, normed: Array, d_opened: Array, d_products: Array, operands: Operands
) -> WeightGradients:
  """Returns the cotangents of the weights of products.

  Args:
    squeezed: z [T, r].
    normed: R̂ [T, R, D].
    d_opened: cotangent of silu(z) W_up [T, R, D].
    d_products: what `products_back` returns.
    operands: of the read.
  """
  inner = jax.nn.silu(squeezed).astype(normed.dtype)
  d_up = _product("tk,tsd->skd", inner, d_opened, jnp.float32)
  d_inward = _product("tsd,tk->sdk", normed, d_products, jnp.float32)
  rank, inject = squeezed.shape[-1], operands.inject
  return WeightGradients(
    d_inward[..., :rank].astype(operands.down.dtype),
    d_up.astype(operands.up.dtype),
    None if inject is None else d_inward[..., rank:].astype(inject.dtype),
  )


def _inward(operands: Operands) -> Array:
  """Returns W_down and, behind it, W_inject: [R, D, r] or [R, D, r + R]."""
  weights = [x for x in (operands.down, operands.inject) if x is not None]
  return jnp.concatenate(weights, axis=-1).astype(operands.streams.dtype)


def _product(equation: str, left: Array, right: Array, dtype: Any) -> Array:
  exact = lax.Precision.HIGHEST if left.dtype == jnp.float32 else lax.Precision.DEFAULT
  return jnp.einsum(equation, left, right, precision=exact, preferred_element_type=dtype)
