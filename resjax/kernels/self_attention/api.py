"""Causal self-attention: the choice of an implementation, and its call."""

import functools
from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Float, Int

from resjax.base import Array, wide_dtype
from resjax.base.sharding import Layout
from resjax.kernels.operation import LANES
from resjax.kernels.self_attention import cudnn
from resjax.kernels.self_attention.operands import ALL_EARLIER, PLAIN, Scores, Window
from resjax.kernels.self_attention.reference import cached_attention, masked_rows, padded
from resjax.kernels.self_attention.shards import on_shards

IMPLEMENTATIONS = ("xla", "cudnn", "splash")


def causal_attention(
  q: Float[Array, "B T H C"],
  k: Float[Array, "B T K C"],
  v: Float[Array, "B T K C"],
  segment_ids: Int[Array, "B T"],
  *,
  layout: Layout,
  window: Window = ALL_EARLIER,
  scores: Scores = PLAIN,
  implementation: str = "auto",
  interpret: bool = False,
  prompt: bool = False,
) -> Float[Array, "B T H C"]:
  """softmax(q kᵀ / √C) v over the token itself and the earlier ones of its segment.

  With a soft cap, all implementations but `splash` materialise the scores [B, H, T, T], and `xla`
  does so always, unless the tokens are split over devices.

  Args:
    q: the queries.
    k: the keys; H is a multiple of K, and head h reads key head h // (H / K).
    v: the values.
    segment_ids: the segment of each token; tokens attend within their segment.
    layout: tells the platform, and how B, T and H are split over devices.
    window: how many of the last tokens a token sees.
    scores: scale and soft cap.
    implementation: `splash` (TPU), `cudnn` (NVIDIA GPU, 16-bit activations), `xla` (any platform),
      or `auto`, the first of these that can run.
    interpret: whether `splash` runs in the Pallas interpreter, on any platform.
    prompt: whether rows may have any length, in memory linear in T. They are padded to a length
      that the kernel takes, and none is refused for its length or dtype: where the named
      implementation cannot run, another one does.

  Returns:
    The output of the heads in the dtype of q.

  Raises:
    ValueError: the implementation does not exist or cannot run here, with the reason.
  """
  if prompt:
    options = layout, window, scores, implementation, interpret
    return _of_prompt(q, k, v, segment_ids, *options)
  if implementation == "auto":
    implementation = _best(layout, q, k, scores)
  elif not interpret:
    _check(implementation, layout, q, k, scores)
  if implementation == "splash":
    from resjax.kernels.self_attention.splash import splash_attention  # with Pallas for TPUs

    one = functools.partial(splash_attention, layout=layout, scores=scores, interpret=interpret)
    kernels = [functools.partial(one, window=size) for size in window.sizes]
    if window.index is None:
      return kernels[0](q, k, v, segment_ids)
    return lax.switch(window.index, kernels, q, k, v, segment_ids)
  if implementation == "cudnn":
    otherwise = functools.partial(_beyond_cudnn, scores=scores)
    return cudnn.cudnn_attention(q, k, v, segment_ids, window, scores, otherwise)
  if layout.num_shards("tokens") > 1:
    attend = functools.partial(_parts, sizes=window.sizes, scores=scores)
    spec, balanced = PartitionSpec(), 0 in window.sizes
    return on_shards(attend, layout, window.index, spec, balanced=balanced)(q, k, v, segment_ids)
  ids, size = segment_ids, window.size
  return masked_rows(q, k, v, ids, ids, 0, size, scores=scores, implementation="xla")


def _parts(
  q: Array, k: Array, v: Array, query_ids: Array, key_ids: Array, places: Sequence[Array | int],
  index: Array | None, *, sizes: tuple[int, ...], scores: Scores,
) -> Array:  # fmt: skip
  """Returns the attention of the queries of one device, in memory linear in T: see `on_shards`."""
  # The gradients of keys and values are sums over chunks of queries.
  k, v = (a.astype(wide_dtype(a)) for a in (k, v))
  window, count = Window(sizes, index), len(places)
  parts = zip(jnp.split(q, count, axis=1), jnp.split(query_ids, count, axis=1), places, strict=True)
  outs = [
    cached_attention(part, k, v, ids, key_ids, first, window=window, scores=scores)
    for part, ids, first in parts
  ]
  return jnp.concatenate(outs, axis=1)


def _beyond_cudnn(
  q: Array, k: Array, v: Array, segment_ids: Array, window: Window, scores: Scores
) -> Array:
  """Returns the attention of rows whose segments cuDNN has no arguments for.

  GPUs before Hopper take a mask, which is a bias [B, 1, T, T] for cuDNN. Later ones get here with
  more segments in a row than cuDNN is asked to take.
  """
  ids = segment_ids
  if cudnn.takes_segments():
    return cached_attention(q, k, v, ids, ids, 0, window=window, scores=scores)
  return masked_rows(q, k, v, ids, ids, 0, window.size, scores=scores, implementation="cudnn")


def _of_prompt(
  q: Array, k: Array, v: Array, segment_ids: Array, layout: Layout, window: Window, scores: Scores,
  name: str, interpret: bool,
) -> Array:  # fmt: skip
  """Does what `causal_attention` does with `prompt`, on rows that are padded for the kernel."""
  length = q.shape[1]
  rest = -length % LANES
  q_padded, k_padded, v_padded = (padded(a, rest) for a in (q, k, v))
  if name == "auto" or _obstacle(name, layout, q_padded, k_padded, scores):
    name = _best(layout, q_padded, k_padded, scores)
  if name == "xla" or length < LANES:
    return cached_attention(q, k, v, segment_ids, segment_ids, 0, window=window, scores=scores)
  out = causal_attention(
    q_padded, k_padded, v_padded, padded(segment_ids, rest, -1), layout=layout, window=window,
    scores=scores, implementation=name, interpret=interpret,
  )  # fmt: skip
  return out[:, :length]


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
    from resjax.kernels.self_attention import splash

    return splash.obstacle(layout, q, k)
  return cudnn.obstacle(layout, q, scores) if name == "cudnn" else None
