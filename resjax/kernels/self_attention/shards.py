"""Attention on a mesh: each device has some rows, heads and queries, and all keys of its rows."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array, PyTree, rounded, wide_dtype
from resjax.base.sharding import Layout


def on_shards(
  attend: Callable[..., Array],
  layout: Layout,
  operand: PyTree = None,
  operand_spec: PyTree = None,
  *,
  balanced: bool = False,
) -> Callable[[Array, Array, Array, Array], Array]:
  """Returns a function of q, k, v and segment_ids that runs on all devices of a mesh.

  The function takes and returns arrays as `causal_attention` does. Where `tokens` is split, a
  device gathers the keys and values of all tokens in their own dtype; their gradients are summed
  over devices in float32 and scattered back. Later queries see more keys. With `balanced`, devices
  have equally much to do: they send half of their queries to each other, see `halves`, and what
  comes of them back.

  Args:
    attend: the attention on one device, called as attend(q, k, v, segments of the queries, segments
      of the keys, places, operand); places has those in their rows of the first query of each of
      the equal parts of q, whose queries follow each other.
    layout: the mesh and the rules; B, T, H and K must divide.
    operand: what else `attend` takes; None: nothing.
    operand_spec: how the operand lies on the mesh.
    balanced: whether devices exchange queries, where there are several and their number is even.
  """
  axes, count = layout.rules.tokens, layout.num_shards("tokens")

  def local(q: Array, k: Array, v: Array, segment_ids: Array, operand: PyTree) -> Array:
    if count == 1:
      return attend(q, k, v, segment_ids, segment_ids, (0,), operand)
    k, v = _gathered(k, axes), _gathered(v, axes)
    all_ids = lax.all_gather(segment_ids, axes, axis=1, tiled=True)
    here, length = lax.axis_index(axes), q.shape[1]
    if not balanced or length % 2:
      return attend(q, k, v, segment_ids, all_ids, (here * length,), operand)
    places = jnp.asarray(halves(count))[here] * (length // 2)
    to, back = _routes(count)
    q, ids = _exchanged(q, axes, to), _exchanged(segment_ids, axes, to)
    return _exchanged(attend(q, k, v, ids, all_ids, tuple(places), operand), axes, back)

  heads = layout.spec("batch", "tokens", "heads", None)
  mapped = jax.shard_map(
    local,
    mesh=layout.mesh,
    in_specs=(heads, heads, heads, layout.spec("batch", "tokens"), operand_spec),
    out_specs=heads,
    check_vma=False,  # the outputs of kernels carry no such annotation
  )
  return lambda q, k, v, segment_ids: mapped(q, k, v, segment_ids, operand)


def halves(count: int) -> list[tuple[int, int]]:
  """Returns for each of n devices which halves of which devices' queries it works on.

  Half h is the first or second one of device h // 2. Device i has halves i and 2n - 1 - i, which
  see 2n keys together, in halves, wherever i is. One of them is even, and comes first.
  """
  pairs = [(i, 2 * count - 1 - i) for i in range(count)]
  return [pair if pair[0] % 2 == 0 else pair[::-1] for pair in pairs]


_Pairs = Sequence[tuple[int, int]]


def _routes(count: int) -> tuple[tuple[_Pairs, _Pairs], tuple[_Pairs, _Pairs]]:
  """Returns from where to where first and second halves go to be worked on, and go back."""
  wanted = halves(count)
  to = tuple([(pair[side] // 2, i) for i, pair in enumerate(wanted)] for side in (0, 1))
  back = tuple([(i, home) for home, i in pairs] for pairs in to)
  return (to[0], to[1]), (back[0], back[1])


def _exchanged(x: Array, axes: tuple[str, ...], routes: tuple[_Pairs, _Pairs]) -> Array:
  """Sends the two halves of the tokens [B, t, ...] each of its ways."""
  parts = zip(jnp.split(x, 2, axis=1), routes, strict=True)
  return jnp.concatenate([lax.ppermute(part, axes, pairs) for part, pairs in parts], axis=1)


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
