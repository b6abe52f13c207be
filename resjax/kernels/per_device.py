"""Kernels on the tokens of each device: what a kernel sees of a sharded array.

A kernel sees the tokens of one device as rows [T, D] of local arrays. Devices exchange nothing but
the sums over tokens in the cotangents of what all tokens share.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
from jax import lax
from jax.sharding import PartitionSpec

from resjax.base import Array, PyTree
from resjax.base.sharding import Layout

# The position of the first token axis of an array: [..., D], [N, ..., D] or [S, N, ...]. An array
# without token axes is the same on all devices, and one that a reverse pass returns is summed.
FIRST, SECOND, THIRD, NO_TOKENS = 0, 1, 2, -1


def obstacle(layout: Layout, like: jax.ShapeDtypeStruct) -> str | None:
  """Returns why a kernel cannot run on arrays [..., D] that are split as `layout` says, or None."""
  if not layout.spans_devices:
    return None
  if like.ndim != 3:
    return f"sources of shape {like.shape} on a mesh, it splits [B, T, D]"
  if layout.num_shards("embed") > 1:
    return "the mesh splits D of activations (rule 'embed'), it reads whole rows"
  for axis, size in (("batch", like.shape[0]), ("tokens", like.shape[1])):
    if size % layout.num_shards(axis):
      return f"axis {axis!r} of size {size} does not divide over {layout.num_shards(axis)} devices"
  return None


def on_each_device(
  layout: Layout, what: str, run: Callable, in_axes: tuple[PyTree, ...], out_axes: PyTree
) -> Callable:
  """Returns a function that runs a kernel on the rows of each device.

  Args:
    layout: mesh, and how token axes are split over it.
    what: words for the error message if a second derivative is asked for.
    run: takes the trees of `in_axes`, whose token axes are folded into one; the first tree has
      `like`, the shape [..., D] of an array with all token axes.
    in_axes: for every array the position of its first token axis.
    out_axes: the same for what `run` returns.
  """

  def local(*trees: PyTree) -> PyTree:
    tokens = trees[0].like.shape[:-1]

    def fold(axis: int, x: Array) -> Array:
      behind = x.shape[axis + len(tokens) :]
      return x if axis < 0 else x.reshape(*x.shape[:axis], math.prod(tokens), *behind)

    def unfold(axis: int, x: Array) -> Array:
      if axis < 0:
        return lax.psum(x, _token_axes(layout)) if layout.spans_devices else x
      return x.reshape(*x.shape[:axis], *tokens, *x.shape[axis + 1 :])

    return jax.tree.map(unfold, out_axes, run(*jax.tree.map(fold, in_axes, trees)))

  if not layout.spans_devices:
    return partial(_once_differentiable, what, local)

  def spec(axis: int) -> PartitionSpec:
    return layout.spec(*[None] * axis, "batch", "tokens") if axis >= 0 else PartitionSpec()

  in_specs, out_specs = jax.tree.map(spec, (in_axes, out_axes))
  # The outputs of a kernel carry no annotation of the mesh axes that they vary over.
  sharded = jax.shard_map(
    local, mesh=layout.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
  )
  return partial(_once_differentiable, what, sharded)


def _token_axes(layout: Layout) -> tuple[str, ...]:
  assert layout.rules is not None  # there is a mesh
  return (*layout.rules.batch, *layout.rules.tokens)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _once_differentiable(what: str, call: Callable, *args: PyTree) -> PyTree:
  """Calls a kernel, which has no derivative: one is asked for where a gradient is derived again."""
  return call(*args)


@_once_differentiable.defjvp
def _refuse(what: str, call: Callable, primals: PyTree, tangents: PyTree) -> PyTree:
  del call, primals, tangents
  raise ValueError(
    f"the kernels of {what} have no second derivative; use implementation='reference'"
  )
