"""Products of tokens with the matrices of the experts that they chose, on one device or several.

Rows of tokens are ordered by expert, each group is filled up to whole tiles of one expert each, and
a loop multiplies tile by tile. On TPUs rows go through `jax.lax.ragged_dot` instead, which is a
kernel there, but for gradients of matrices: those it would sum over the rows of all experts for
every expert, as it does everything on CPUs.

Where experts are split over devices that have tokens of their own, every device gathers the tokens
of the others, runs its own experts on those that chose them, and sums what all experts made of its
own tokens. An exchange of each token with the devices of its experts alone (`ragged_all_to_all`)
would need room for as many rows, since all of them may choose one device, and CPUs do not have it.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, Int

from resjax.base import Array, rounded, wide_dtype
from resjax.nn.linear import PRODUCT

_TILES = 4  # tiles of the rows that an expert has on average
_LEAST_TILE, _MOST_TILE = 8, 512


class Form(NamedTuple):
  """How a device runs its experts.

  Attributes:
    activation: of the hidden units.
    dtype: the dtype of the products.
    platform: where it runs; on a `tpu` `jax.lax.ragged_dot` multiplies rows.
    owners: the mesh axes along which devices have other experts.
    others: those of them along which devices have other tokens, too.
    added: the mesh axes along which devices have the same tokens, and parts of their outputs.
    embed: the mesh axes along which devices hold parts of D of the matrices.
  """

  activation: Callable[[Array], Array]
  dtype: jax.typing.DTypeLike
  platform: str
  owners: tuple[str, ...] = ()
  others: tuple[str, ...] = ()
  added: tuple[str, ...] = ()
  embed: tuple[str, ...] = ()

  @property
  def sums(self) -> bool:
    """Whether devices add up parts of outputs and of gradients of inputs."""
    return bool(self.others or self.added)


class _Groups(NamedTuple):
  """Choices of tokens ordered by expert: the slot of each, and what a slot is multiplied with.

  Attributes:
    slots: the slot of each choice [n, k]; the number of slots: its expert is not here.
    sources: the choice in each slot, 0..n k - 1; n k: the slot is empty.
    sizes: the number of slots in the filled tiles of each expert [E].
    tiles: the expert of each tile of slots.
    filled: how many of the tiles have rows; None: all may have some.
  """

  slots: Array
  sources: Array
  sizes: Array
  tiles: Array
  filled: Array | None

  def loop(self, fill: Callable[[Array, Array, Array], Array], made: Array) -> Array:
    """Returns what fill(first slot of a tile, its expert, what is made) makes of tile by tile."""
    tiles, size = self.tiles, len(self.sources) // len(self.tiles)
    end = len(tiles) if self.filled is None else self.filled
    return lax.fori_loop(0, end, lambda tile, made: fill(tile * size, tiles[tile], made), made)

  def tile(self, rows: Float[Array, "S d"], first: Array) -> Float[Array, "_ d"]:
    """Returns the rows of the tile that begins with this slot."""
    return lax.dynamic_slice_in_dim(rows, first, len(self.sources) // len(self.tiles))


def run_experts(
  form: Form,
  x: Float[Array, "b t D"],
  weights: Float[Array, "b t k"],
  chosen: Int[Array, "b t k"],
  *kernels: Float[Array, "E _ _"],
) -> Float[Array, "b t D"]:
  """Returns the output for the tokens of a device, which has E of all experts."""
  shape, count, (*inward, down) = x.shape, kernels[0].shape[0], kernels
  x, weights, chosen = (a.reshape(-1, a.shape[-1]) for a in (x, weights, chosen))
  if form.others:
    weights, chosen = (
      lax.all_gather(a, form.others, axis=0, tiled=True) for a in (weights, chosen)
    )
  if form.owners:
    chosen = chosen - lax.axis_index(form.owners) * count
  groups = _groups(jnp.where((chosen >= 0) & (chosen < count), chosen, count), count, form.platform)
  hidden = [checkpoint_name(each, PRODUCT) for each in _inward(form, x, inward, groups)]
  inner = form.activation(hidden[0]) if len(hidden) == 1 else form.activation(hidden[0]) * hidden[1]
  out = _outward(form, inner, weights, down, groups)
  if form.others:
    out = lax.psum_scatter(out, form.others, scatter_dimension=0, tiled=True)
  if form.added:
    out = lax.psum(out, form.added)
  return rounded(out, form.dtype).reshape(shape)


def _groups(own: Int[Array, "n k"], count: int, platform: str) -> _Groups:
  """Returns the order of choices by expert.

  Args:
    own: the experts that tokens chose, 0..count-1; count: one of another device.
    count: the number of experts E.
    platform: where it runs.
  """
  # No token chooses an expert twice, so that no more of its choices can be of this device, and
  # tokens are counted: compilers for TPUs take less than half as long as for sorting them.
  most = len(own) * min(own.shape[1], count)
  hits = jnp.sum(jax.nn.one_hot(own, count, dtype=jnp.int32), axis=1)  # [n, E], 0 or 1
  upto = jnp.cumsum(hits, axis=0)
  tile = min(max(most // (count * _TILES), _LEAST_TILE), _MOST_TILE)
  filled = -(-upto[-1] // tile)
  ends, num_tiles = jnp.cumsum(filled), min(most, most // tile + count)
  tiles = jnp.searchsorted(ends, jnp.arange(num_tiles), side="right").clip(max=count - 1)
  places, size = (tile * (ends - filled))[None] + upto - hits, num_tiles * tile
  slots = jnp.take_along_axis(places, own, axis=1, mode="fill", fill_value=size)
  number = jnp.arange(own.size, dtype=jnp.int32).reshape(own.shape)
  sources = jnp.full(size, own.size).at[slots].set(number, mode="drop")
  # A host that waits for a GPU after each tile costs more than empty tiles.
  end = None if platform == "gpu" else _largest(ends[-1])
  return _Groups(slots, sources, filled * tile, tiles, end)


@jax.custom_batching.custom_vmap
def _largest(number: Array) -> Array:
  """Returns a number; of several under vmap the largest, so that all of them share one loop.

  A loop whose ends differ would copy what it writes at every step, for those that have ended.
  """
  return number


@_largest.def_vmap
def _largest_of_all(_: int, __: list[bool], numbers: Array) -> tuple[Array, bool]:
  return jnp.max(numbers), False


def _multiplied(
  form: Form, rows: Float[Array, "S d"], w: Float[Array, "E d f"], groups: _Groups, dtype: Any
) -> Float[Array, "S f"]:
  """Returns each slot's row times the matrix of its expert, summed in float32, in `dtype`."""
  if form.platform == "tpu":  # which sums in float32 by itself
    return lax.ragged_dot(rows, w, groups.sizes, preferred_element_type=dtype)

  def fill(first: Array, expert: Array, made: Array) -> Array:
    own = groups.tile(rows, first)
    part = jnp.dot(own, w[expert], preferred_element_type=wide_dtype(rows))
    return lax.dynamic_update_slice_in_dim(made, part.astype(dtype), first, 0)

  return groups.loop(fill, jnp.zeros((len(rows), w.shape[-1]), dtype))


def _gradient(
  rows: Float[Array, "S d"], grad: Float[Array, "S f"], groups: _Groups
) -> Float[Array, "E d f"]:
  """Returns the gradient of the experts' matrices, in float32."""
  wide = wide_dtype(rows)

  def add(first: Array, expert: Array, total: Array) -> Array:
    a, b = groups.tile(rows, first), groups.tile(grad, first)
    part = jnp.dot(a.T, b, preferred_element_type=wide)
    return lax.dynamic_update_index_in_dim(total, total[expert] + part, expert, 0)

  return groups.loop(add, jnp.zeros((len(groups.sizes), rows.shape[-1], grad.shape[-1]), wide))


def _joined(form: Form, kernel: Array, axis: int) -> Array:
  """Returns matrices with all of D, which is their axis `axis`, in the dtype of the products."""
  w = kernel.astype(form.dtype)
  return lax.all_gather(w, form.embed, axis=axis, tiled=True) if form.embed else w


def _shared_out(names: tuple[str, ...], d: Array, axis: int, like: Array) -> Array:
  """Returns a device's part of a gradient that devices add up, like what it is the gradient of."""
  if names:
    d = lax.psum_scatter(d, names, scatter_dimension=axis, tiled=True)
  return d.astype(like.dtype)


def _rows(form: Form, x: Float[Array, "n D"], groups: _Groups) -> Float[Array, "S D"]:
  """Returns the token of each slot; 0 where it is empty."""
  x = x.astype(form.dtype)
  if form.others:
    x = lax.all_gather(x, form.others, axis=0, tiled=True)
  return _tokens(x, groups)


def _tokens(x: Float[Array, "n D"], groups: _Groups) -> Float[Array, "S D"]:
  return x.at[groups.sources // groups.slots.shape[1]].get(mode="fill", fill_value=0)


def _choices(slots: Float[Array, "S ..."], groups: _Groups) -> Float[Array, "n k ..."]:
  """Returns what is in the slots of a token's choices; 0 for those of other devices.

  So a sum over a token's choices reads slots, and nothing is scattered.
  """
  return slots.at[groups.slots].get(mode="fill", fill_value=0)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _inward(
  form: Form, x: Float[Array, "n D"], kernels: list[Array], groups: _Groups
) -> list[Array]:
  """Returns the token of each slot times each of the matrices of its expert, [S, F] each."""
  rows = _rows(form, x, groups)
  return [_multiplied(form, rows, _joined(form, w, 1), groups, form.dtype) for w in kernels]


def _inward_forward(form: Form, *arguments: Any) -> tuple[list[Array], Any]:
  return _inward(form, *arguments), arguments


def _inward_backward(form: Form, saved: Any, grads: list[Array]) -> tuple[Array, list, None]:
  x, kernels, groups = saved
  rows = _rows(form, x, groups)
  d_rows: list[Array] = []
  d_kernels, wide = [], wide_dtype(rows)
  for kernel, grad in zip(kernels, grads, strict=True):
    w = _joined(form, kernel, 1).swapaxes(1, 2)
    d_rows.append(_multiplied(form, grad, w, groups, wide))
    d_kernels.append(_shared_out(form.embed, _gradient(rows, grad, groups), 1, kernel))
  d_tokens = jnp.sum(_choices(reduce(jnp.add, d_rows), groups), axis=1)
  return _shared_out(form.others, d_tokens, 0, x), d_kernels, None


_inward.defvjp(_inward_forward, _inward_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _outward(
  form: Form,
  inner: Float[Array, "S F"],
  weights: Float[Array, "n k"],
  kernel: Float[Array, "E F D"],
  groups: _Groups,
) -> Float[Array, "n D"]:
  """Returns the weighted sum of what the experts of this device make of a token, in float32.

  The weights multiply what the matrices are given, and not what they make of it: so no gradient
  needs the k outputs of a token, to keep or to compute again.
  """
  dtype, scaled = wide_dtype(inner) if form.sums else form.dtype, _scaled(inner, weights, groups)
  made = _multiplied(form, scaled, _joined(form, kernel, 2), groups, dtype)
  return jnp.sum(_choices(made, groups), axis=1, dtype=wide_dtype(inner))


def _scaled(rows: Float[Array, "S F"], weights: Array, groups: _Groups) -> Float[Array, "S F"]:
  """Returns each slot's row times the weight of its choice."""
  own = weights.reshape(-1).at[groups.sources].get(mode="fill", fill_value=0)
  return (rows * own[:, None]).astype(rows.dtype)


def _outward_forward(form: Form, *arguments: Any) -> tuple[Array, Any]:
  return _outward(form, *arguments), arguments


def _outward_backward(form: Form, saved: Any, grad: Array) -> tuple[Array, Array, Array, None]:
  inner, weights, kernel, groups = saved
  d_made, scaled = _tokens(grad.astype(form.dtype), groups), _scaled(inner, weights, groups)
  d_kernel = _shared_out(form.embed, _gradient(scaled, d_made, groups), 2, kernel)
  w = _joined(form, kernel, 2).swapaxes(1, 2)
  d_scaled = _multiplied(form, d_made, w, groups, form.dtype)
  # A sum and no dot product, whose factors TPUs would round to bfloat16.
  d_weights = jnp.sum(d_scaled.astype(weights.dtype) * inner.astype(weights.dtype), axis=-1)
  return _scaled(d_scaled, weights, groups), _choices(d_weights, groups), d_kernel, None


_outward.defvjp(_outward_forward, _outward_backward)
