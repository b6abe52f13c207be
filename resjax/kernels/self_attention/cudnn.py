"""cuDNN's fused attention over packed rows, told about segments by their places, not by a mask."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array
from resjax.base.sharding import Layout
from resjax.kernels.self_attention.operands import Scores, Window

_fused: Any
try:  # jax.nn offers no places of segments
  from jax._src.cudnn import fused_attention_stablehlo as _fused
except ImportError:
  _fused = None

_MAX_WIDTH = 128  # the widest head that cuDNN takes on every GPU
MAX_SEGMENTS = 32  # of a row; the statistics that cuDNN saves grow with it


def takes_segments() -> bool:
  """Returns whether cuDNN supports segments on this device: from Hopper GPUs on."""
  return _fused is not None and _fused.check_compute_capability("9.0")


def cudnn_attention(
  q: Array,
  k: Array,
  v: Array,
  segment_ids: Array,
  window: Window,
  scores: Scores,
  otherwise: Callable[[Array, Array, Array, Array, Window], Array],
) -> Array:
  """`causal_attention` by cuDNN without a mask.

  Rows of one segment each need the causal mask alone, which cuDNN has in itself. Other rows are
  described by the offsets and lengths of their segments.

  Args:
    q, k, v: see `causal_attention`.
    segment_ids: the segment of each token [B, T]; the tokens of a segment are adjacent.
    window: how many of the last tokens a token sees.
    scores: the scale; there is no soft cap.
    otherwise: attention in other operations for rows that cuDNN does not support, called as
      otherwise(q, k, v, segment_ids, window).
  """
  starts = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1] - 1) != 0
  most = jnp.max(jnp.sum(starts, axis=1))
  several = takes_segments()
  index = jnp.minimum(most - 1, 1) + (several & (most > MAX_SEGMENTS))

  def sized(size: int, *arrays: Array) -> Array:
    plain = functools.partial(_one_segment, size=size, scores=scores)
    packed = functools.partial(_packed, size=size, scores=scores)

    def other(q: Array, k: Array, v: Array, ids: Array, _: Array) -> Array:
      return otherwise(q, k, v, ids, Window((size,)))

    return lax.switch(index, [plain, *([packed] if several else []), other], *arrays)

  arrays = q, k, v, segment_ids, starts
  kernels = [functools.partial(sized, size) for size in window.sizes]
  return kernels[0](*arrays) if window.index is None else lax.switch(window.index, kernels, *arrays)


def _one_segment(
  q: Array, k: Array, v: Array, _: Array, __: Array, *, size: int, scores: Scores
) -> Array:
  """Returns the causal attention of rows that are one segment."""
  return jax.nn.dot_product_attention(
    q,
    k,
    v,
    is_causal=True,
    scale=scores.scale,
    local_window_size=(size - 1, 0) if size else None,
    implementation="cudnn",
  )


def _packed(
  q: Array, k: Array, v: Array, _: Array, starts: Array, *, size: int, scores: Scores
) -> Array:
  """Returns the causal attention of rows of at most `MAX_SEGMENTS` segments.

  Args:
    q: the queries [B, T, H, C].
    k: the keys [B, T, K, C].
    v: the values [B, T, K, C].
    starts: whether a token is the first one of its segment, bool [B, T].
    size: the window; 0: all.
    scores: the scale.
  """
  # JAX counts the offsets of keys in heads of queries, so both must be as many.
  k, v = (jnp.repeat(a, q.shape[2] // k.shape[2], axis=2) for a in (k, v))
  lengths, offsets = segments(starts, MAX_SEGMENTS)
  return _fused.dot_product_attention(
    q,
    k,
    v,
    q_seqlen=lengths,
    kv_seqlen=lengths,
    q_offsets=offsets,
    kv_offsets=offsets,
    scale=scores.scale_for(q.shape[-1]),
    mask_type=_fused.MaskType.PADDING_CAUSAL,
    sliding_window_length=size or None,
  )


def segments(starts: Array, most: int) -> tuple[Array, Array]:
  """Returns lengths [B, M] and offsets [B, M + 1] of segments, -1 where a row has fewer than M.

  Args:
    starts: whether a token is the first one of its segment, bool [B, T].
    most: M.
  """
  length = starts.shape[1]
  find = functools.partial(jnp.nonzero, size=most + 1, fill_value=length)
  offsets = jax.vmap(lambda row: find(row)[0])(starts).astype(jnp.int32)
  lengths = jnp.diff(offsets, axis=1)
  return jnp.where(lengths > 0, lengths, -1), jnp.where(offsets < length, offsets, -1)


def obstacle(layout: Layout, q: Array, scores: Scores) -> str | None:
  """Returns why cuDNN's fused attention cannot run, or None.

  Heads up to 256 wide would run on Hopper GPUs alone, so they are left to XLA.
  """
  if scores.softcap:
    return f"it has no soft cap, config.model.attention_softcap is {scores.softcap}"
  if layout.num_shards("tokens") > 1:
    return (
      "its causal mask starts at the first key, and where config.mesh.sequence splits rows the "
      "queries of a device start later"
    )
  length, width = q.shape[1], q.shape[-1]
  if q.dtype not in (jnp.bfloat16, jnp.float16):
    return f"it needs 16-bit activations, config.model.dtype gives {q.dtype}"
  if width % 8 or width > _MAX_WIDTH:
    return f"a head is {width} wide (config.model.head_dim), no multiple of 8 up to {_MAX_WIDTH}"
  if length % 2:
    return f"the row length {length} (config.data.seq_len) is odd"
  return None
