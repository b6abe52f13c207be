"""Causal self-attention: the choice of an implementation, and attention in XLA and cuDNN."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from resjax.base import Array, promoting
from resjax.base.sharding import Layout
from resjax.kernels.operation import LANES
from resjax.kernels.self_attention.cudnn import cudnn_attention, takes_segments
from resjax.kernels.self_attention.scores import (
  ALL_EARLIER,
  PLAIN,
  Scores,
  Window,
  masked_attention,
)
from resjax.kernels.self_attention.shards import on_shards
from resjax.kernels.self_attention.splash import splash_attention

IMPLEMENTATIONS = ("xla", "cudnn", "splash")
_CUDNN_WIDTH = 128  # the widest head that cuDNN takes on every GPU
_CHUNK = 256  # how many queries of a prompt have their scores in memory at the same time


def causal_attention(
  q: Array,
  k: Array,
  v: Array,
  segment_ids: Array,
  *,
  layout: Layout,
  window: Window = ALL_EARLIER,
  scores: Scores = PLAIN,
  implementation: str = "auto",
  interpret: bool = False,
) -> Array:
  """softmax(q kᵀ / √C) v over the token itself and the earlier ones of its segment.

  With a soft cap, all implementations but `splash` materialise the scores [B, H, T, T].

  Args:
    q: the queries [B, T, H, C].
    k: the keys [B, T, K, C]; H is a multiple of K, and head h reads key head h // (H / K).
    v: the values [B, T, K, C].
    segment_ids: the segment of each token [B, T]; tokens attend within their segment.
    layout: tells the platform, and how B, T and H are split over devices.
    window: how many of the last tokens a token sees.
    scores: scale and soft cap.
    implementation: `splash` (TPU), `cudnn` (NVIDIA GPU, 16-bit activations), `xla` (any platform),
      or `auto`, the first of these that can run.
    interpret: whether `splash` runs in the Pallas interpreter, on any platform.

  Returns:
    The output of the heads [B, T, H, C] in the dtype of q.

  Raises:
    ValueError: the implementation does not exist or cannot run here, with the reason.
  """
  if implementation == "auto":
    implementation = _best(layout, q, k, scores)
  elif not interpret:
    _check(implementation, layout, q, k, scores)
  if implementation == "splash":
    kernels = [
      functools.partial(
        splash_attention, layout=layout, window=size, scores=scores, interpret=interpret
      )
      for size in window.sizes
    ]
    if window.index is None:
      return kernels[0](q, k, v, segment_ids)
    return lax.switch(window.index, kernels, q, k, v, segment_ids)
  if implementation == "cudnn":
    otherwise = functools.partial(_beyond_cudnn, scores=scores)
    return cudnn_attention(q, k, v, segment_ids, window, scores, otherwise)
  attend = functools.partial(_masked_rows, scores=scores, implementation="xla")
  if layout.num_shards("tokens") > 1:
    mapped = on_shards(attend, layout, jnp.asarray(window.size), PartitionSpec())
    return mapped(q, k, v, segment_ids)
  return attend(q, k, v, segment_ids, segment_ids, 0, window.size)


def _beyond_cudnn(
  q: Array, k: Array, v: Array, segment_ids: Array, window: Window, scores: Scores
) -> Array:
  """Returns the attention of rows whose segments cuDNN has no arguments for.

  GPUs before Hopper take a mask, which is a bias [B, 1, T, T] for cuDNN. Later ones get here with
  more segments in a row than cuDNN is asked to take.
  """
  ids = segment_ids
  if takes_segments():
    return cached_attention(q, k, v, ids, ids, 0, window=window, scores=scores)
  return _masked_rows(q, k, v, ids, ids, 0, window.size, scores=scores, implementation="cudnn")


def _masked_rows(
  q: Array,
  k: Array,
  v: Array,
  query_ids: Array,
  key_ids: Array,
  first: Array | int,
  window: Array | int,
  *,
  scores: Scores,
  implementation: str,
  places: tuple[Array, Array] | None = None,
) -> Array:
  """Returns the attention of queries number first, first + 1, ... of their rows to all keys.

  Args:
    q: some of the queries of each row [B, t, H, C].
    k: all keys [B, T, K, C].
    v: all values [B, T, K, C].
    query_ids: the segments of the queries [B, t].
    key_ids: the segments of the keys [B, T].
    first: the place in its row of the first query.
    window: how many of the last tokens a token sees; 0: all.
    scores: scale and soft cap.
    implementation: `xla` or `cudnn`.
    places: see `cached_attention`.
  """
  mask = query_ids[:, None, :, None] == key_ids[:, None, None, :]
  if places is None:
    query = first + jnp.arange(q.shape[1])[None, None, :, None]
    key = jnp.arange(k.shape[1])[None, None, None]
  else:
    query, key = places[0][:, None, :, None], places[1][:, None, None, :]
  mask &= (key <= query) & ((key > query - window) | (window == 0))
  # `jax.nn.dot_product_attention` has a softmax in float32 whatever its arguments are, and for
  # float16 it asks for products that CPUs do not have.
  plain = q.dtype == jnp.float64 or (q.dtype == jnp.float16 and implementation == "xla")
  if scores.softcap or plain:
    return masked_attention(q, k, v, mask, scores)
  # cuDNN gets the causal mask in words too, so that it skips the keys that no query sees.
  cudnn = implementation == "cudnn"
  return promoting(jax.nn.dot_product_attention)(
    q,
    k,
    v,
    mask=mask,
    is_causal=cudnn,
    scale=scores.scale,
    implementation="cudnn" if cudnn else "xla",
  )


def prompt_attention(
  q: Array,
  k: Array,
  v: Array,
  segment_ids: Array,
  *,
  layout: Layout,
  window: Window = ALL_EARLIER,
  scores: Scores = PLAIN,
  implementation: str = "auto",
) -> Array:
  """Does what `causal_attention` does, for rows of any length and in memory linear in T.

  Rows are padded to a length that the kernel takes. A prompt is not refused for its length or
  dtype: where the named implementation cannot run, another one does.

  Args:
    q: see `causal_attention`, as all other arguments.
  """
  length = q.shape[1]
  rest, name = -length % LANES, implementation
  q_padded, k_padded, v_padded = (_padded(a, rest) for a in (q, k, v))
  if name == "auto" or _obstacle(name, layout, q_padded, k_padded, scores):
    name = _best(layout, q_padded, k_padded, scores)
  if name == "xla" or length < LANES:
    return cached_attention(q, k, v, segment_ids, segment_ids, 0, window=window, scores=scores)
  out = causal_attention(
    q_padded,
    k_padded,
    v_padded,
    _padded(segment_ids, rest, -1),
    layout=layout,
    window=window,
    scores=scores,
    implementation=name,
  )
  return out[:, :length]


def cached_attention(
  q: Array,
  k: Array,
  v: Array,
  query_ids: Array,
  key_ids: Array,
  first: Array | int,
  *,
  window: Window = ALL_EARLIER,
  scores: Scores = PLAIN,
  places: tuple[Array, Array] | None = None,
) -> Array:
  """Attention of T queries to the S keys of a cache, which include the keys of the same T tokens.

  The queries go chunk by chunk, so that memory is linear in T and in S; a chunk takes the first
  quarters of the keys, as many as it sees something of.

  Args:
    q: the queries [B, T, H, C].
    k: the keys [B, S, K, C]; H is a multiple of K.
    v: the values [B, S, K, C].
    query_ids: the segments of the queries [B, T].
    key_ids: the segments of the keys [B, S].
    first: the slot of the first query's own key, a scalar; the other ones follow.
    window: how many of the last tokens a token sees.
    scores: scale and soft cap.
    places: the positions of queries [B, T] and keys [B, S] in their documents, by which a token
      sees earlier ones and windows count; None: their slots, where there is no padding among them.

  Returns:
    The output of the heads [B, T, H, C] in the dtype of q.
  """
  attend = functools.partial(_masked_rows, window=window.size, scores=scores, implementation="xla")
  length, num_keys = q.shape[1], k.shape[1]
  if length <= _CHUNK:
    return attend(q, k, v, query_ids, key_ids, first, places=places)
  rest = -length % _CHUNK
  own = None if places is None else _chunked(_padded(places[0], rest))
  chunks = (_chunked(_padded(q, rest)), _chunked(_padded(query_ids, rest, -1)), own)
  ends = [-(-num_keys * part // 4) for part in (1, 2, 3, 4)]

  def to(end: int, q: Array, ids: Array, own: Array | None, start: Array) -> Array:
    at = None if places is None or own is None else (own, places[1][:, :end])
    return attend(q, k[:, :end], v[:, :end], ids, key_ids[:, :end], start, places=at)

  def one(chunk: tuple[Array, Array, Array | None, Array]) -> Array:
    least = jnp.searchsorted(jnp.asarray(ends[:-1]), chunk[-1] + _CHUNK)
    return lax.switch(least, [functools.partial(to, end) for end in ends], *chunk)

  starts = first + _CHUNK * jnp.arange(chunks[0].shape[0])
  # A reverse pass computes the scores of a chunk again, rather than keep those of all chunks.
  out = lax.map(jax.checkpoint(one), (*chunks, starts))
  return out.swapaxes(0, 1).reshape(q.shape[0], -1, *q.shape[2:])[:, :length]


def _padded(a: Array, count: int, value: int = 0) -> Array:
  return jnp.pad(a, [(0, 0), (0, count)] + [(0, 0)] * (a.ndim - 2), constant_values=value)


def _chunked(a: Array) -> Array:
  """Returns the chunks [T / chunk, B, chunk, ...] of [B, T, ...]."""
  return a.reshape(a.shape[0], -1, _CHUNK, *a.shape[2:]).swapaxes(0, 1)


def _best(layout: Layout, q: Array, k: Array, scores: Scores) -> str:
  """Returns the first implementation that can run."""
  for name in ("splash", "cudnn"):
    if _obstacle(name, layout, q, k, scores) is None:
      return name
  return "xla"


def _check(name: str, layout: Layout, q: Array, k: Array, scores: Scores) -> None:
  """Raises a ValueError unless the named implementation can run."""
  obstacle = _obstacle(name, layout, q, k, scores)
  if obstacle:
    raise ValueError(f"config.model.attention={name!r} cannot run: {obstacle}; use 'auto'")


def _obstacle(name: str, layout: Layout, q: Array, k: Array, scores: Scores) -> str | None:
  """Returns why an implementation cannot run, or None."""
  if name not in IMPLEMENTATIONS:
    return f"the names are auto, {', '.join(IMPLEMENTATIONS)}"
  platform = layout.platform
  needed = {"splash": "tpu", "cudnn": "gpu", "xla": platform}[name]
  if platform != needed:
    return f"it needs platform {needed!r}, the mesh is on {platform!r}"
  if name == "splash":
    return _splash_obstacle(layout, q, k)
  return _cudnn_obstacle(layout, q, scores) if name == "cudnn" else None


def _splash_obstacle(layout: Layout, q: Array, k: Array) -> str | None:
  """Returns which size splash attention cannot run with, or None."""
  length, parts = q.shape[1], layout.num_shards("tokens")
  if length % (LANES * parts):
    among = f" times {parts} (config.mesh.sequence)" if parts > 1 else ""
    return f"the row length {length} (config.data.seq_len) is no multiple of {LANES}{among}"
  for axis, size in (("batch", q.shape[0]), ("heads", q.shape[2]), ("heads", k.shape[2])):
    if size % layout.num_shards(axis):
      return f"{size} {axis} do not divide over {layout.num_shards(axis)} devices"
  return None


def _cudnn_obstacle(layout: Layout, q: Array, scores: Scores) -> str | None:
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
  if width % 8 or width > _CUDNN_WIDTH:
    return f"a head is {width} wide (config.model.head_dim), no multiple of 8 up to {_CUDNN_WIDTH}"
  if length % 2:
    return f"the row length {length} (config.data.seq_len) is odd"
  return None
