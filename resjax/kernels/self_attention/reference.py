"""Self-attention in plain JAX (`xla`): any rows and masks; queries by chunks against a cache."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float, Int

from resjax.base import Array, PyTree, promoting, wide_dtype
from resjax.kernels.self_attention.operands import ALL_EARLIER, PLAIN, Scores, Window

_CHUNK = 256  # how many queries of a prompt have their scores in memory at the same time


def masked_attention(q: Array, k: Array, v: Array, mask: Array, scores: Scores) -> Array:
  """Attention in plain operations, with a soft cap or without; softmax in float32 or wider.

  Args:
    q: the queries [B, T, H, C].
    k: the keys [B, S, K, C]; H is a multiple of K.
    v: the values [B, S, K, C].
    mask: which keys a query sees, bool [B, 1, T, S]; every query sees at least one.
    scores: scale and soft cap.

  Returns:
    The output of the heads [B, T, H, C] in the dtype of q.
  """
  batch, length, num_heads, width = q.shape
  grouped = q.reshape(batch, length, k.shape[2], num_heads // k.shape[2], width)
  dots = jnp.einsum("btkgc,bskc->bkgts", grouped, k, preferred_element_type=wide_dtype(q))
  scaled, cap = dots * scores.scale_for(width), scores.softcap
  capped = cap * jnp.tanh(scaled / cap) if cap else scaled
  capped = jnp.where(mask[:, :, None], capped, jnp.finfo(capped.dtype).min)
  p = jax.nn.softmax(capped, axis=-1).astype(v.dtype)
  return jnp.einsum("bkgts,bskc->btkgc", p, v).reshape(q.shape)


def masked_rows(
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


def cached_attention(
  q: Float[Array, "B T H C"],
  k: Float[Array, "B S K C"],
  v: Float[Array, "B S K C"],
  query_ids: Int[Array, "B T"],
  key_ids: Int[Array, "B S"],
  first: Int[Array, ""] | int,
  *,
  window: Window = ALL_EARLIER,
  scores: Scores = PLAIN,
  places: tuple[Int[Array, "B T"], Int[Array, "B S"]] | None = None,
) -> Float[Array, "B T H C"]:
  """Attention of T queries to the S keys of a cache, which include the keys of the same T tokens.

  The queries go chunk by chunk, so that memory is linear in T and in S; a chunk takes the first
  quarters of the keys, as many as it sees something of.

  Args:
    q: the queries.
    k: the keys, which are multiplied in the dtype of q; H is a multiple of K.
    v: the values, likewise.
    query_ids: the segments of the queries.
    key_ids: the segments of the keys.
    first: the slot of the first query's own key; the other ones follow.
    window: how many of the last tokens a token sees.
    scores: scale and soft cap.
    places: the positions of queries and keys in their documents, by which a token
      sees earlier ones and windows count; None: their slots, where there is no padding among them.

  Returns:
    The output of the heads [B, T, H, C] in the dtype of q.
  """
  length, num_keys = q.shape[1], k.shape[1]

  def attend(q: Array, end: int, ids: Array, start: Array | int, at: PyTree) -> Array:
    keys, values = (a[:, :end].astype(q.dtype) for a in (k, v))
    options: dict[str, Any] = {"scores": scores, "implementation": "xla", "places": at}
    return masked_rows(q, keys, values, ids, key_ids[:, :end], start, window.size, **options)

  if length <= _CHUNK:
    return attend(q, num_keys, query_ids, first, places)
  rest = -length % _CHUNK
  own = None if places is None else _chunked(padded(places[0], rest))
  chunks = (_chunked(padded(q, rest)), _chunked(padded(query_ids, rest, -1)), own)
  ends = [-(-num_keys * part // 4) for part in (1, 2, 3, 4)]

  def to(end: int, q: Array, ids: Array, own: Array | None, start: Array) -> Array:
    at = None if places is None or own is None else (own, places[1][:, :end])
    return attend(q, end, ids, start, at)

  def one(chunk: tuple[Array, Array, Array | None, Array]) -> Array:
    least = jnp.searchsorted(jnp.asarray(ends[:-1]), chunk[-1] + _CHUNK)
    return lax.switch(least, [functools.partial(to, end) for end in ends], *chunk)

  starts = first + _CHUNK * jnp.arange(chunks[0].shape[0])
  # A reverse pass computes the scores of a chunk again, rather than keep those of all chunks.
  out = lax.map(jax.checkpoint(one), (*chunks, starts))
  return out.swapaxes(0, 1).reshape(q.shape[0], -1, *q.shape[2:])[:, :length]


def padded(a: Array, count: int, value: int = 0) -> Array:
  """Returns [B, T, ...] with `count` more tokens behind."""
  return jnp.pad(a, [(0, 0), (0, count)] + [(0, 0)] * (a.ndim - 2), constant_values=value)


def _chunked(a: Array) -> Array:
  """Returns the chunks [T / chunk, B, chunk, ...] of [B, T, ...]."""
  return a.reshape(a.shape[0], -1, _CHUNK, *a.shape[2:]).swapaxes(0, 1)
