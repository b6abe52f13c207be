"""Splash attention, the TPU kernel that ships with JAX."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.sharding import NamedSharding, PartitionSpec

from resjax.base import Array, PyTree
from resjax.base.sharding import Layout
from resjax.kernels.operation import LANES
from resjax.kernels.self_attention.operands import Scores
from resjax.kernels.self_attention.shards import halves, on_shards


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
    return _rows(q, k, v, segment_ids, segment_ids, (0,), kernel)
  spec = layout.spec("heads", "tokens")
  spec = kernel.manual_sharding_spec(NamedSharding(layout.mesh, PartitionSpec(*spec)))
  mapped = on_shards(_rows, layout, kernel, spec, balanced=not window)
  return mapped(q, k, v, segment_ids)


class _ByBlock:
  """Tells blocks of a mask without making them, where all or none of their keys are seen.

  The library asks `any` and `all` of every block in turn, of 65,536 several times for 128k tokens.
  """

  q_sequence: np.ndarray
  earliest: int | None = None  # how many tokens before a query its first key is; None: all

  def __getitem__(self, block: tuple[slice, slice]) -> np.ndarray:
    rows, keys = self.q_sequence[block[0]], block[1]
    before = len(self.q_sequence) if self.earliest is None else self.earliest
    first, last = rows.min(), rows.max()
    if last < keys.start or first - before >= keys.stop:
      return np.array(False)
    if first >= keys.stop - 1 and last - before <= keys.start:
      return np.array(True)
    return super().__getitem__(block)  # type: ignore[misc]


class _Causal(_ByBlock, splash.CausalMask):
  pass


class _Local(_ByBlock, splash.LocalMask):
  pass


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

  Its arrays describe the mask, and are split over devices as the tokens and heads are. Where
  devices exchange queries, a row of the mask is that of the query that is there then.
  """
  square, part = (length, length), length // query_shards
  mask: _Local | _Causal
  if window:
    mask = _Local(square, (window - 1, 0), 0)
    mask.earliest = window - 1
  else:
    mask = _Causal(square)
    if query_shards > 1:
      places = np.arange(length, dtype=np.int32).reshape(2 * query_shards, -1)
      mask.q_sequence = places[np.ravel(halves(query_shards))].ravel()
      part //= 2
  tile = next((t for t in (512, 256) if part % t == 0), LANES)
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
  _: Sequence[Array | int], kernel: PyTree,
) -> Array:  # fmt: skip
  """Returns the attention of the rows, queries and heads of one device, see `on_shards`.

  The kernel's part of the mask tells it the places of the queries.
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
