"""Linear maps, embeddings and MLPs, and the random numbers that parameters start from.

Products are summed in float32 over devices too.
"""

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, Int

from resjax.base import Array, aligned, rounded, wide_dtype
from resjax.base.sharding import Layout, cotangent, take_rows, whole

PRODUCT = "product"  # the name of every linear map's result, for policies of recomputation
# TPUs keep narrower rows as if they were so wide.
_LANES = 128
_gelu_tanh = functools.partial(jax.nn.gelu, approximate=True)
_gelu_exact = functools.partial(jax.nn.gelu, approximate=False)

# Name -> activation, and whether there is a gate.
_KINDS: dict[str, tuple[Callable[[Array], Array], bool]] = {
  "swiglu": (jax.nn.silu, True),
  "geglu": (_gelu_tanh, True),
  "gelu": (_gelu_tanh, False),
  "gelu_exact": (_gelu_exact, False),
}
MLPS = tuple(_KINDS)


class Keys:
  """Gives each part of a module a source of initial values that follows from its name.

  So a parameter's first values depend on the seed and on its path, such as
  layers/attention/q_proj/kernel, and not on which parts are made before it. Models that differ in
  some parts begin with the same values of all others.

  Args:
    rngs: the source of the module, from which one key is drawn.
  """

  def __init__(self, rngs: nnx.Rngs):
    self._key = rngs.params()

  def __call__(self, name: str) -> nnx.Rngs:
    """Returns the source of the part of this name."""
    rngs = nnx.Rngs(params=self._key)
    # A source mixes its key with the number of each draw. This first number follows from the name,
    # so that a part costs no more to compile than a draw. Python's own hash of a text would differ
    # from process to process.
    rngs.params.count[...] = jnp.uint32(zlib.crc32(name.encode()))
    return rngs


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
    precision: that of the products; None: JAX's default, which rounds float32 on TPUs.
    in_heads: H and C, where x has the axes [..., H, C] in place of d_in = H · C; None: it has not.
    out_heads: the same for y and d_out.
  """

  def __init__(
    self, d_in: int, d_out: int, axes: tuple[str | None, str | None], *,
    bias: bool, std: float, dtype: jax.typing.DTypeLike, layout: Layout, rngs: nnx.Rngs,
    precision: lax.Precision | None = None,
    in_heads: tuple[int, int] | None = None, out_heads: tuple[int, int] | None = None,
  ):  # fmt: skip
    init = nnx.initializers.normal(std)
    self.dtype, self.precision = dtype, precision
    self.shapes = in_heads or (d_in,), out_heads or (d_out,)
    self.layout = layout
    self.split = _is_split(layout, axes[0]), _is_split(layout, axes[1])
    self.kernel = nnx.Param(init(rngs.params(), (d_in, d_out)), axes=axes)
    self.bias = nnx.Param(jnp.zeros(d_out), axes=axes[1:]) if bias else None

  @jax.named_scope("projection")
  def __call__(self, x: Float[Array, "B T ..."]) -> Float[Array, "B T ..."]:
    """Maps x [..., d_in] to y [..., d_out], or to and from heads."""
    bias = None if self.bias is None else self.bias[...]
    if self.layout.num_shards("embed_param") > 1:
      y = self._joined(x, bias)
    else:
      y = _affine(
        x, self.kernel[...], bias, _Form(self.dtype, self.split, self.shapes, self.precision)
      )
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
    form = _Form(self.dtype, self.split, ((d_in,), (d_out,)), self.precision)
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


class Embedding(nnx.Module):
  """x_t = s E[token_t] (+ P[position_t]) with s = 1 or √D, rounded to the dtype of the result.

  Where D of a table is split over devices, each of them looks up its columns for the tokens of all,
  and they exchange what they found. To gather the table, and to scatter its gradient, would mostly
  take more bytes, since a device rarely has more tokens than there are rows; but it is done where a
  device has only few columns.

  Args:
    vocab_size: the size of the vocabulary V.
    d_model: the model width D.
    max_positions: the number of rows of P; 0: no P, because positions are rotary, in attention.
    scaled: whether s = √D, as in Gemma (arXiv 2403.08295).
    std: the standard deviation of both tables at init.
    dtype: the dtype of the result.
    layout: the mesh and sharding rules of the activations.
    rngs: the source of the initial values.
  """

  def __init__(
    self, vocab_size: int, d_model: int, *, max_positions: int, scaled: bool = False,
    std: float, dtype: jax.typing.DTypeLike, layout: Layout, rngs: nnx.Rngs,
  ):  # fmt: skip
    init = nnx.initializers.normal(std)
    self.dtype, self.layout, self.scaled = dtype, layout, scaled
    keys, axes = Keys(rngs), ("vocab", "embed_param")
    self.embedding = nnx.Param(init(keys("embedding").params(), (vocab_size, d_model)), axes=axes)
    places = keys("positions").params()
    table = init(places, (max_positions, d_model)) if max_positions else None
    self.positions = None if table is None else nnx.Param(table, axes=(None, "embed_param"))

  @jax.named_scope("embedding")
  def __call__(
    self, tokens: Int[Array, "B T"], positions: Int[Array, "B T"]
  ) -> Float[Array, "B T D"]:
    """Maps tokens and positions to embeddings."""
    x = self._rows(self.embedding, "vocab", tokens)
    if self.scaled:
      x = x * jnp.asarray(x.shape[-1] ** 0.5, x.dtype)
    return x if self.positions is None else x + self._rows(self.positions, None, positions)

  def _rows(self, parameter: nnx.Param, axis: str | None, index: Array) -> Array:
    """Returns the rows [B, T, D] of a table [axis, D] that an index [B, T] names."""
    width = parameter.shape[-1] // self.layout.num_shards("embed_param")
    exchanged = [*self.layout.by_columns()] if width >= _LANES else []
    layouts = [*exchanged, self.layout]
    table = parameter[...] if exchanged else self.layout.constrain(parameter[...], axis, "embed")
    rows = take_rows(table, layouts[0].constrain(index, "batch", "tokens"))
    # The cast comes after the lookup, so that the gradient of a frequent token, which is a long
    # sum, is summed in float32.
    rows = rows.astype(self.dtype)
    for layout in layouts:
      rows = layout.constrain(rows, "batch", "tokens", "embed")
    return rows


def activation_of(name: str) -> tuple[Callable[[Array], Array], bool]:
  """Returns the activation of the MLP of this name, and whether it has a W_gate."""
  return _KINDS[name]


def is_gated(name: str) -> bool:
  """Returns whether the MLP of this name has a W_gate."""
  return activation_of(name)[1]


class MLP(nnx.Module):
  """W_down (act(W_gate x) ⊙ W_up x) where there is a gate, else W_down act(W_up x).

  `swiglu` has silu and a gate, `geglu` gelu and a gate; `gelu` and `gelu_exact` have no gate. The
  gelu of `geglu` and `gelu` is the tanh approximation.

  Args:
    name: one of `MLPS`.
    d_model: the model width D.
    mlp_dim: the inner width F.
    bias: whether the linear maps have biases.
    std: the standard deviation of W_gate and W_up at init.
    out_std: the standard deviation of W_down at init.
    dtype: the dtype of the activations.
    layout: the mesh and sharding rules of the activations.
    rngs: the source of the initial values.

  Source: GLU variants, arXiv 2002.05202; GPT-2 (tanh); Pythia (exact), arXiv 2304.01373.
  """

  def __init__(
    self,
    name: str,
    d_model: int,
    mlp_dim: int,
    *,
    bias: bool,
    std: float,
    out_std: float,
    dtype: jax.typing.DTypeLike,
    layout: Layout,
    rngs: nnx.Rngs,
  ):
    common: dict[str, Any] = {"bias": bias, "dtype": dtype, "layout": layout}
    keys, inward = Keys(rngs), ("embed_param", "mlp")
    self.layout = layout
    self.activation, gated = activation_of(name)
    into = functools.partial(Linear, d_model, mlp_dim, inward, std=std, **common)
    self.gate_proj = into(rngs=keys("gate_proj")) if gated else None
    self.up_proj = into(rngs=keys("up_proj"))
    out: dict[str, Any] = {"std": out_std, "rngs": keys("down_proj")}
    self.down_proj = Linear(mlp_dim, d_model, inward[::-1], **out, **common)

  @jax.named_scope("mlp")
  def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Maps x to the output."""
    x = shared(x, self.layout, "mlp")
    hidden = self.up_proj(x)
    if self.gate_proj is None:
      hidden = self.activation(hidden)
    else:
      hidden = self.activation(self.gate_proj(x)) * hidden
    hidden = self.layout.constrain(hidden, "batch", "tokens", "mlp")
    return self.down_proj(hidden)


class _Form(NamedTuple):
  """How a linear map is computed.

  Attributes:
    dtype: the dtype of the product.
    split: whether devices hold parts of sums over d_in and over d_out.
    shapes: which axes x and y have in place of d_in and d_out.
    precision: that of the products.
  """

  dtype: jax.typing.DTypeLike
  split: tuple[bool, bool]
  shapes: tuple[tuple[int, ...], tuple[int, ...]]
  precision: lax.Precision | None


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
  y = _product(x, weights, inner, form.split[0], dtype, form.precision)
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
  d_x = _product(grad, weights, outer, form.split[1], like.dtype, form.precision)
  joined = grad.reshape(*grad.shape[:count], math.prod(d_out))
  d_kernel = lax.dot_general(
    x, joined, ((rows, rows), ((), ())), form.precision, wide, out_sharding=whole()
  )
  d_bias = None if bias is None else cotangent(jnp.sum(joined, rows, wide), bias)
  return d_x, cotangent(d_kernel.reshape(kernel.shape), kernel), d_bias


_affine.defvjp(_affine_forward, _affine_backward)


def _product(
  x: Array,
  w: Array,
  axes: tuple[Sequence[int], Sequence[int]],
  split: bool,
  dtype: jax.typing.DTypeLike,
  precision: lax.Precision | None,
) -> Array:
  """Returns the product of x and w over these axes, in `dtype`."""
  if not split:  # within a device, matrix units sum in float32 by themselves
    return lax.dot_general(x, w, (axes, ((), ())), precision).astype(dtype)
  wide = lax.dot_general(x, w, (axes, ((), ())), precision, wide_dtype(x))
  return rounded(wide, dtype)


def _is_split(layout: Layout, axis: str | None) -> bool:
  """Returns whether the axis of activations that a parameter's axis meets is split over devices."""
  return axis is not None and layout.num_shards("embed" if axis == "embed_param" else axis) > 1
