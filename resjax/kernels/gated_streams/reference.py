"""A gated read of residual streams in plain JAX."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from resjax.base import Array, wide_dtype
from resjax.base.sharding import cotangent, whole
from resjax.kernels.gated_streams.operands import Operands
from resjax.kernels.sums import sum_of_products

_SQUEEZED = "squeezed"  # the low-rank projection, which the reverse pass keeps


@partial(
  jax.checkpoint,
  static_argnums=(0,),
  prevent_cse=False,
  policy=jax.checkpoint_policies.save_only_these_names(_SQUEEZED),
)
def read(eps: float, operands: Operands) -> tuple[Array, Array | None]:
  """Returns x [..., D], and the logits [R, ...] if there is W_inject; see `gated_read`."""
  streams, gain, down, up, inject = operands
  gain = jnp.expand_dims(gain, range(1, streams.ndim - 1))
  wide = _normalized(streams, eps) * gain
  normed = wide.astype(streams.dtype)
  logits = None
  if inject is not None:
    logits = _product("s...d,sdk->...k", normed, inject) / len(streams)
    logits = jnp.moveaxis(logits, -1, 0)
  squeezed = _product("s...d,sdk->...k", normed, down) / len(streams)
  inner = jax.nn.silu(checkpoint_name(squeezed, _SQUEEZED)).astype(streams.dtype)
  # R D values per token are rounded before they are stored, as activations are.
  gate = jax.nn.sigmoid(_product("...k,skd->s...d", inner, up).astype(streams.dtype))
  return (sum_of_products(gate, wide) / len(streams)).astype(streams.dtype), logits


@partial(jax.checkpoint, prevent_cse=False)
def _normalized(streams: Array, eps: float) -> Array:
  wide = streams.astype(wide_dtype(streams))
  return wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(equation: str, x: Array, weight: Array) -> Array:
  """Returns a product with a float32 weight as `Linear` computes it, in the dtype of x.

  Sums are float32 or wider, and so are results and gradients of weights, which devices add.
  """
  return jnp.einsum(equation, x, weight.astype(x.dtype), preferred_element_type=wide_dtype(x))


def _product_forward(equation: str, x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
  return _product(equation, x, weight), (x, weight)


def _product_backward(
  equation: str, saved: tuple[Array, Array], grad: Array
) -> tuple[Array, Array]:
  x, weight = saved
  of_x, of_weight, of_grad = equation.replace("->", ",").split(",")
  grad = grad.astype(x.dtype)  # JAX's own rule would multiply in float32
  d_x = jnp.einsum(f"{of_grad},{of_weight}->{of_x}", grad, weight.astype(x.dtype))
  product = partial(jnp.einsum, f"{of_x},{of_grad}->{of_weight}", out_sharding=whole())
  wide = wide_dtype(x)
  d_weight = product(x, grad, preferred_element_type=wide)
  return cotangent(d_x, x), cotangent(d_weight, weight)


_product.defvjp(_product_forward, _product_backward)
