"""Splash attention, the TPU kernel that ships with JAX."""

import jax
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.sharding import NamedSharding, PartitionSpec

from resjax.base import Array, PyTree
from resjax.base.sharding import Layout
from resjax.kernels.operation import LANES
from resjax.kernels.self_attention.operands import Scores
from resjax.kernels.self_attention.shards import on_shards


def splash_attention(
  q: Array,
  k: Array,
  v: Array,
  segment_ids: Array,
  *,
  layout: Layout,
  window: int,
  scores: Scores,
  interpret: bool,
) -> Array:
  """Does what `causal_attention` does, by splash attention; its arguments are the same but one.

  Args:
    window: how many of the last tokens a token sees; 0: all.
  """
  queries, heads = layout.num_shards("tokens"), layout.num_shards("heads")
  kernel = _kernel(q.shape[1], q.shape[2], queries, heads, window, scores.softcap, interpret)
  q = q * scores.scale_for(q.shape[-1])
  if not layout.spans_devices:
    return _rows(q, k, v, segment_ids, segment_ids, 0, kernel)
  spec = layout.spec("heads", "tokens")
  spec = kernel.manual_sharding_spec(NamedSharding(layout.mesh, PartitionSpec(*spec)))
  return on_shards(_rows, layout, kernel, spec)(q, k, v, segment_ids)


def _kernel(
  length: int,
  num_heads: int,
  query_shards: int,
  head_shards: int,
  window: int,
  softcap: float,
  interpret: bool,
) -> PyTree:
  """Returns the kernel for T tokens and H heads in all, a pytree that is called like a function.

  Its arrays describe the mask, and are split over devices as the tokens and heads are.
  """
  tile = next(t for t in (512, 256, LANES) if length // query_shards % t == 0)
  square = (length, length)
  mask = (
    splash.LocalMask(square, (window - 1, 0), 0, shard_count=query_shards)
    if window
    else splash.CausalMask(square, shard_count=query_shards)
  )
  return splash.make_splash_mha(
    splash.MultiHeadMask([mask] * num_heads),
    head_shards=head_shards,
    q_seq_shards=query_shards,
    attn_logits_soft_cap=softcap or None,
    block_sizes=splash.BlockSizes(
      block_q=tile, block_kv=tile, block_kv_compute=tile,
      block_q_dkv=tile, block_kv_dkv=tile, block_kv_dkv_compute=tile,
      block_q_dq=tile, block_kv_dq=tile,
    ),
    interpret=interpret,
  )  # fmt: skip


def _rows(
  q: Array, k: Array, v: Array, query_ids: Array, key_ids: Array,
  first: Array | int, kernel: PyTree,
) -> Array:  # fmt: skip
  """Returns the attention of the rows, queries and heads of one device, see `on_shards`.

  The kernel's part of the mask tells it the place of the first query, so `first` is not used.
  """

  def one_row(q: Array, k: Array, v: Array, query_ids: Array, key_ids: Array) -> Array:
    # The kernel wants heads before tokens, [H, T, C].
    ids = splash.SegmentIds(query_ids, key_ids)
    return kernel(*(a.swapaxes(0, 1) for a in (q, k, v)), ids).swapaxes(0, 1)

  return jax.vmap(one_row)(q, k, v, query_ids, key_ids)


def obstacle(layout: Layout, q: Array, k: Array) -> str | None:
  """Returns which size splash attention cannot run with, or None."""
  length, parts = q.shape[1], layout.num_shards("tokens")
  if length % (LANES * parts):
    among = f" times {parts} (config.mesh.sequence)" if parts > 1 else ""
    return f"the row length {length} (config.data.seq_len) is no multiple of {LANES}{among}"
  for axis, size in (("batch", q.shape[0]), ("heads", q.shape[2]), ("heads", k.shape[2])):
    if size % layout.num_shards(axis):
      return f"{size} {axis} do not divide over {layout.num_shards(axis)} devices"
  return None
