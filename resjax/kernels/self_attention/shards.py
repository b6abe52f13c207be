"""Attention on a mesh: each device has some rows, heads and queries, and all keys of its rows."""

import functools
from collections.abc import Callable

import jax
from jax import lax

from resjax.base import Array, PyTree, rounded, wide_dtype
from resjax.base.sharding import Layout


def on_shards(
  attend: Callable[..., Array],
  layout: Layout,
  operand: PyTree = None,
  operand_spec: PyTree = None,
) -> Callable[[Array, Array, Array, Array], Array]:
  """Returns a function of q, k, v and segment_ids that runs on all devices of a mesh.

  The function takes and returns arrays as `causal_attention` does. Where `tokens` is split, a
  device keeps its queries and gathers the keys and values of all tokens in their own dtype; their
  gradients are summed over devices in float32 and scattered back. Later queries see more keys, so
  the last device has the most work.

  Args:
    attend: the attention on one device, called as attend(q, k, v, segments of the queries, segments
      of the keys, place of the first query in its row, operand).
    layout: the mesh and the rules; B, T, H and K must divide.
    operand: what else `attend` takes; None: nothing.
    operand_spec: how the operand lies on the mesh.
  """
  axes = layout.rules.tokens if layout.num_shards("tokens") > 1 else ()

  def local(q: Array, k: Array, v: Array, segment_ids: Array, operand: PyTree) -> Array:
    if not axes:
      return attend(q, k, v, segment_ids, segment_ids, 0, operand)
    k, v = _gathered(k, axes), _gathered(v, axes)
    all_ids = lax.all_gather(segment_ids, axes, axis=1, tiled=True)
    first = lax.axis_index(axes) * q.shape[1]
    return attend(q, k, v, segment_ids, all_ids, first, operand)

  heads = layout.spec("batch", "tokens", "heads", None)
  mapped = jax.shard_map(
    local,
    mesh=layout.mesh,
    in_specs=(heads, heads, heads, layout.spec("batch", "tokens"), operand_spec),
    out_specs=heads,
    check_vma=False,  # the outputs of kernels carry no such annotation
  )
  return lambda q, k, v, segment_ids: mapped(q, k, v, segment_ids, operand)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gathered(x: Array, axes: tuple[str, ...]) -> Array:
  """Gathers the tokens of all devices: [B, T / shards, K, C] to [B, T, K, C]."""
  return lax.all_gather(x, axes, axis=1, tiled=True)


def _gathered_forward(x: Array, axes: tuple[str, ...]) -> tuple[Array, None]:
  return _gathered(x, axes), None


def _gathered_backward(axes: tuple[str, ...], _: None, grad: Array) -> tuple[Array]:
  # JAX's own rule would sum in the dtype of x.
  wide = grad.astype(wide_dtype(grad))
  total = lax.psum_scatter(wide, axes, scatter_dimension=1, tiled=True)
  return (rounded(total, grad.dtype),)


_gathered.defvjp(_gathered_forward, _gathered_backward)
