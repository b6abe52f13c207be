"""Causal self-attention over packed rows, through the best existing kernel of the platform."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from resjax.sharding import Layout
from resjax.typing import Array

IMPLEMENTATIONS = ("xla", "cudnn", "splash")
_TPU_LANES = 128
_CUDNN_WIDTH = 128


def causal_attention(
  q: Array,
  k: Array,
  v: Array,
  segment_ids: Array,
  *,
  layout: Layout,
  window: int | None = None,
  implementation: str = "auto",
  interpret: bool = False,
) -> Array:
  """softmax(q kᵀ / √C) v over the token itself and earlier ones of the same segment.

  Args:
    q: queries [B, T, H, C].
    k: keys [B, T, K, C]; H is a multiple of K, head h reads key head h // (H / K).
    v: values [B, T, K, C].
    segment_ids: [B, T]; tokens attend within one segment.
    layout: tells the platform, and how B and H are split over devices.
    window: token t attends to t - window + 1..t alone; at least 1. None: all earlier tokens.
    implementation: `splash` (TPU), `cudnn` (NVIDIA, 16-bit), `xla` (any), or `auto`.
    interpret: runs `splash` in the Pallas interpreter, on any platform.

  Returns:
    [B, T, H, C] in the dtype of q.

  Raises:
    ValueError: the implementation does not exist or cannot run here, with the reason.
  """
  if implementation == "auto":
    implementation = _best(layout, q, k)
  elif not interpret:
    _check(implementation, layout, q, k)
  if implementation == "splash":
    return _splash(q, k, v, segment_ids, layout, window, interpret)
  mask = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
  if window is not None:
    index = jnp.arange(q.shape[1])
    mask &= index[None, :] > index[:, None] - window
  return jax.nn.dot_product_attention(
    q, k, v, mask=mask, is_causal=True, implementation=implementation
  )


def masked_attention(q: Array, k: Array, v: Array, mask: Array) -> Array:
  """softmax(q kᵀ / √C) v over the keys that a mask lets a query see; what decoding needs.

  Args:
    q: queries [B, T, H, C].
    k: keys [B, S, K, C]; H is a multiple of K.
    v: values [B, S, K, C].
    mask: bool [B, T, S]; every query sees a key.

  Returns:
    [B, T, H, C] in the dtype of q.
  """
  return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="xla")


def _best(layout: Layout, q: Array, k: Array) -> str:
  for name in ("splash", "cudnn"):
    if _obstacle(name, layout, q, k) is None:
      return name
  return "xla"


def _check(name: str, layout: Layout, q: Array, k: Array) -> None:
  obstacle = _obstacle(name, layout, q, k)
  if obstacle:
    raise ValueError(f"config.model.attention={name!r} cannot run: {obstacle}; use 'auto'")


def _obstacle(name: str, layout: Layout, q: Array, k: Array) -> str | None:
  """Returns why an implementation cannot run, or None."""
  if name not in IMPLEMENTATIONS:
    return f"the names are auto, {', '.join(IMPLEMENTATIONS)}"
  platform = layout.platform
  needed = {"splash": "tpu", "cudnn": "gpu", "xla": platform}[name]
  if platform != needed:
    return f"it needs platform {needed!r}, the mesh is on {platform!r}"
  if name == "splash" and q.shape[1] % _TPU_LANES:
    return f"the row length {q.shape[1]} (config.data.seq_len) is no multiple of {_TPU_LANES}"
  if name == "splash":
    for axis, size in (("batch", q.shape[0]), ("heads", q.shape[2]), ("heads", k.shape[2])):
      if size % layout.num_shards(axis):
        return f"{size} {axis} do not divide over {layout.num_shards(axis)} devices"
    if layout.num_shards("tokens") > 1:
      return "it needs whole rows, config.mesh.sequence splits them"
  return _cudnn_obstacle(q) if name == "cudnn" else None


def _cudnn_obstacle(q: Array) -> str | None:
  """The conditions of cuDNN's fused attention; widths up to 256 need a Hopper, so they are left."""
  length, width = q.shape[1], q.shape[-1]
  if q.dtype not in (jnp.bfloat16, jnp.float16):
    return f"it needs 16-bit activations, config.model.dtype gives {q.dtype}"
  if width % 8 or width > _CUDNN_WIDTH:
    return f"a head is {width} wide (config.model.head_dim), no multiple of 8 up to {_CUDNN_WIDTH}"
  if length % 2:
    return f"the row length {length} (config.data.seq_len) is odd"
  return None


def _splash(q, k, v, segment_ids, layout: Layout, window: int | None, interpret: bool) -> Array:
  attend = functools.partial(_splash_rows, window=window, interpret=interpret)
  if layout.mesh is not None and layout.mesh.size > 1:
    heads = layout.spec("batch", None, "heads", None)
    attend = jax.shard_map(
      attend,
      mesh=layout.mesh,
      in_specs=(heads, heads, heads, layout.spec("batch", None)),
      out_specs=heads,
      check_vma=False,  # the kernel's outputs carry no such annotation
    )
  return attend(q * q.shape[-1] ** -0.5, k, v, segment_ids)


def _splash_rows(q, k, v, segment_ids, *, window: int | None, interpret: bool) -> Array:
  """Splash attention of the rows and heads of one device."""
  length, num_heads = q.shape[1], q.shape[2]
  tile = next(t for t in (512, 256, _TPU_LANES) if length % t == 0)
  square = (length, length)
  mask = (
    splash.CausalMask(square) if window is None else splash.LocalMask(square, (window - 1, 0), 0)
  )
  kernel = splash.make_splash_mha(
    splash.MultiHeadMask([mask] * num_heads),
    head_shards=1,
    q_seq_shards=1,
    block_sizes=splash.BlockSizes(
      block_q=tile, block_kv=tile, block_kv_compute=tile,
      block_q_dkv=tile, block_kv_dkv=tile, block_kv_dkv_compute=tile,
      block_q_dq=tile, block_kv_dq=tile,
    ),
    interpret=interpret,
  )  # fmt: skip

  def one_row(q, k, v, ids):  # [T, H, C] -> [H, T, C] and back
    out = kernel(*(a.swapaxes(0, 1) for a in (q, k, v)), splash.SegmentIds(ids, ids))
    return out.swapaxes(0, 1)

  return jax.vmap(one_row)(q, k, v, segment_ids)
