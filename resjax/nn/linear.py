"""Linear maps with logical axes, whose products are summed in float32 over devices too."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from resjax.base import Array, aligned, rounded, wide_dtype
from resjax.base.sharding import Layout, cotangent, whole

PRODUCT = "product"  # the name of every linear map's result, for policies of recomputation


class Linear(nnx.Module):
  """y = x W + b with W [d_in, d_out] ~ N(0, std²) and b = 0 at init, both float32.

  The product is computed in `dtype`. Where every device holds a part of a sum (over heads or F
  under tensor parallelism, over rows and tokens in the gradients of W and b), the parts and their
  sum are float32.

  Args:
    d_in: the size of the last axis of x.
    d_out: the size of the last axis of y.
    axes: the logical axes of W, see `resjax.base.sharding.Rules`; None: it is never split.
    bias: whether there is a b.
    std: the standard deviation of W at init.
    dtype: the dtype of the activations.
    layout: the mesh and sharding rules of the activations.
    rngs: the source of the initial values.
    in_heads: H and C, where x has the axes [..., H, C] in place of d_in = H · C; None: it has not.
    out_heads: the same for y and d_out.
  """

  def __init__(
    self, d_in: int, d_out: int, axes: tuple[str | None, str | None], *,
    bias: bool, std: float, dtype: jax.typing.DTypeLike, layout: Layout, rngs: nnx.Rngs,
    in_heads: tuple[int, int] | None = None, out_heads: tuple[int, int] | None = None,
  ):  # fmt: skip
    init = nnx.initializers.normal(std)
    self.dtype = dtype
    self.shapes = in_heads or (d_in,), out_heads or (d_out,)
    self.layout = layout
    self.split = _is_split(layout, axes[0]), _is_split(layout, axes[1])
    self.kernel = nnx.Param(init(rngs.params(), (d_in, d_out)), axes=axes)
    self.bias = nnx.Param(jnp.zeros(d_out), axes=axes[1:]) if bias else None

  @jax.named_scope("projection")
  def __call__(self, x: Array) -> Array:
    """Maps x [..., d_in] to y [..., d_out], or to and from heads."""
    bias = None if self.bias is None else self.bias[...]
    if self.layout.num_shards("embed_param") > 1:
      y = self._joined(x, bias)
    else:
      y = _affine(x, self.kernel[...], bias, _Form(self.dtype, self.split, self.shapes))
    # Policies find the result by its name: one that saves all dots would save the wide product,
    # before it is rounded.
    return checkpoint_name(y, PRODUCT)

  def _joined(self, x: Array, bias: Array | None) -> Array:
    """Maps x with the axes H and C joined, where devices gather the weight.

    Were they apart in one product and joined in another, the reverse pass would gather it twice.
    """
    (d_in, d_out), count = self.kernel[...].shape, x.ndim - len(self.shapes[0])
    rows = x.shape[:count]
    if len(self.shapes[0]) > 1:
      x = self.layout.constrain(x.reshape(*rows, d_in), "batch", "tokens", "heads")
    form = _Form(self.dtype, self.split, ((d_in,), (d_out,)))
    y = _affine(x, self.kernel[...], bias, form)
    if len(self.shapes[1]) > 1:
      y = self.layout.constrain(y, "batch", "tokens", "heads").reshape(*rows, *self.shapes[1])
    return y


def shared(x: Array, layout: Layout, axis: str) -> Array:
  """Returns x as several maps to `axis` should take it, so that devices add its gradient once.

  Where `axis` is split over devices, the gradient of x is a sum over devices for every map. Here x
  becomes float32 or wider, and each map rounds it; so the gradients of all maps are added first, in
  float32, and devices add the result.
  """
  return _widened(x) if _is_split(layout, axis) else x


@jax.custom_vjp
def _widened(x: Array) -> Array:
  return x.astype(wide_dtype(x))


def _widened_forward(x: Array) -> tuple[Array, Array]:
  return _widened(x), jnp.empty(0, x.dtype)


def _widened_backward(like: Array, grad: Array) -> tuple[Array]:
  return (rounded(grad, like.dtype),)


_widened.defvjp(_widened_forward, _widened_backward)


class _Form(NamedTuple):
  """How a linear map is computed.

  Attributes:
    dtype: the dtype of the product.
    split: whether devices hold parts of sums over d_in and over d_out.
    shapes: which axes x and y have in place of d_in and d_out.
  """

  dtype: jax.typing.DTypeLike
  split: tuple[bool, bool]
  shapes: tuple[tuple[int, ...], tuple[int, ...]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _affine(x: Array, kernel: Array, bias: Array | None, form: _Form) -> Array:
  """x W + b.

  Heads stay apart in the sums over them, so that a TPU may read them as attention wrote them, heads
  before tokens; joined, they would be copied first.
  """
  return _affine_forward(x, kernel, bias, form)[0]


_Saved = tuple[Array, Array, Array, Array | None]


def _affine_forward(
  x: Array, kernel: Array, bias: Array | None, form: _Form
) -> tuple[Array, _Saved]:
  (d_in, d_out), dtype = form.shapes, form.dtype
  like, x = jnp.empty(0, x.dtype), x.astype(dtype)
  rows = x.shape[: x.ndim - len(d_in)]
  weights = kernel.astype(dtype).reshape(*d_in, -1)
  inner = range(len(rows), x.ndim), range(len(d_in))
  y = _product(x, weights, inner, form.split[0], dtype)
  y = y if bias is None else y + aligned(bias.astype(dtype), y)
  return y.reshape(*rows, *d_out), (x, like, kernel, bias)


def _affine_backward(form: _Form, saved: _Saved, grad: Array) -> tuple[Array, Array, Array | None]:
  # JAX's own rule would round each device's gradients of W and b before they are added.
  x, like, kernel, bias = saved
  d_in, d_out = form.shapes
  count = x.ndim - len(d_in)
  rows, wide = tuple(range(count)), wide_dtype(grad)
  weights = kernel.astype(form.dtype).reshape(*d_in, *d_out)
  outer = range(count, grad.ndim), range(len(d_in), weights.ndim)
  d_x = _product(grad, weights, outer, form.split[1], like.dtype)
  joined = grad.reshape(*grad.shape[:count], math.prod(d_out))
  d_kernel = lax.dot_general(
    x, joined, ((rows, rows), ((), ())), preferred_element_type=wide, out_sharding=whole()
  )
  d_bias = None if bias is None else jnp.sum(joined, rows, wide)
  return d_x, cotangent(d_kernel.reshape(kernel.shape), kernel), cotangent(d_bias, bias)


_affine.defvjp(_affine_forward, _affine_backward)


def _product(
  x: Array,
  w: Array,
  axes: tuple[Sequence[int], Sequence[int]],
  split: bool,
  dtype: jax.typing.DTypeLike,
) -> Array:
  """Returns the product of x and w over these axes, in `dtype`."""
  if not split:  # within a device, matrix units sum in float32 by themselves
    return lax.dot_general(x, w, (axes, ((), ()))).astype(dtype)
  wide = lax.dot_general(x, w, (axes, ((), ())), preferred_element_type=wide_dtype(x))
  return rounded(wide, dtype)


def _is_split(layout: Layout, axis: str | None) -> bool:
  """Returns whether the axis of activations that a parameter's axis meets is split over devices."""
  return axis is not None and layout.num_shards("embed" if axis == "embed_param" else axis) > 1
