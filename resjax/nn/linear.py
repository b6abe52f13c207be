"""Linear maps with logical axes, whose products are summed in float32 over devices too."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from resjax.typing import Array, wide_dtype

PRODUCT = "product"  # name of a linear map's result, for policies of recomputation


class Linear(nnx.Module):
  """y = x W + b with W [d_in, d_out] ~ N(0, std²) and b = 0 at init, in float32.

  Factors are multiplied in `dtype` and summed in float32 or wider, results rounded to `dtype` once.
  Where devices hold parts of a sum (W_o and W_down under tensor parallelism, gradients of W over
  rows and tokens), these parts are added in float32 as well.

  Args:
    d_in: size of the last axis of x.
    d_out: size of the last axis of y.
    axes: logical axes of W, see `resjax.sharding.Rules`.
    bias: whether there is a b.
    std: standard deviation of W at init.
    dtype: of the activations.
    rngs: source of the initial values.
  """

  def __init__(
    self,
    d_in: int,
    d_out: int,
    axes: tuple[str, str],
    *,
    bias: bool,
    std: float,
    dtype: jax.typing.DTypeLike,
    rngs: nnx.Rngs,
  ):
    init = nnx.initializers.normal(std)
    self.dtype = dtype
    self.kernel = nnx.Param(init(rngs.params(), (d_in, d_out)), axes=axes)
    self.bias = nnx.Param(jnp.zeros(d_out), axes=axes[1:]) if bias else None

  def __call__(self, x: Array) -> Array:
    """Maps [..., d_in] to [..., d_out]."""
    bias = None if self.bias is None else self.bias[...]
    y = _affine(x.astype(self.dtype), self.kernel[...], bias)
    # By its name: a policy that saves dots would keep the float32 before the rounding.
    return checkpoint_name(y, PRODUCT)


def matmul(x: Array, y: Array, axes: tuple[tuple[int, ...], tuple[int, ...]]) -> Array:
  """Returns the product of x and y, summed over these axes of each, in float32 or wider."""
  return lax.dot_general(x, y, (axes, ((), ())), preferred_element_type=wide_dtype(x))


@jax.custom_vjp
def _affine(x: Array, kernel: Array, bias: Array | None) -> Array:
  y = matmul(x, kernel.astype(x.dtype), ((x.ndim - 1,), (0,)))
  return (y if bias is None else y + bias).astype(x.dtype)


def _affine_forward(x: Array, kernel: Array, bias: Array | None):
  return _affine(x, kernel, bias), (x, kernel, bias)


def _affine_backward(saved, grad: Array):
  # JAX's own rule would multiply float32 by bfloat16, at a fraction of the speed, or round the
  # gradient of W before devices add theirs.
  x, kernel, bias = saved
  rows = tuple(range(x.ndim - 1))
  d_x = matmul(grad, kernel.astype(x.dtype), ((x.ndim - 1,), (1,))).astype(x.dtype)
  d_kernel = matmul(x, grad, (rows, rows)).astype(kernel.dtype)
  d_bias = None if bias is None else jnp.sum(grad, rows, wide_dtype(grad)).astype(bias.dtype)
  return d_x, d_kernel, d_bias


_affine.defvjp(_affine_forward, _affine_backward)
