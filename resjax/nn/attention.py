"""Multi-head causal self-attention."""

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Float, Int

from resjax.base import Array
from resjax.base.sharding import Layout
from resjax.kernels.self_attention import (
  ALL_EARLIER,
  PLAIN,
  Scores,
  Window,
  cached_attention,
  causal_attention,
)
from resjax.nn.kv_cache import KeyValues
from resjax.nn.linear import Keys, Linear, shared
from resjax.nn.norm import Identity, Norm, make_norm
from resjax.nn.rope import NOT_ROTATED, Rotation, rope
from resjax.nn.values import Projected, ValueMixer


class Attention(nnx.Module):
  """W_o softmax(q kᵀ / √C) v with q = W_q x_q, k = W_k x_k, v = W_v x_v, grouped-query form.

  `resjax.kernels.self_attention.Scores` describes what else can be done with the scores.

  Args:
    d_model: the model width D.
    num_heads: the number of query heads H.
    num_kv_heads: the number of key and value heads K; H is a multiple of K.
    head_dim: the width of a head C.
    qk_norm: what of queries and keys goes through an RMSNorm before the rotation: `none`, every
      `head`, or the `heads` of a token together.
    norm_eps: the eps of that norm.
    bias: whether the linear maps have biases.
    qkv_bias: whether the maps to q, k and v have biases; a true `bias` gives them to all maps.
    std: the standard deviation of W_q and W_k at init.
    value_std: the standard deviation of W_v at init.
    out_std: the standard deviation of W_o at init.
    scores: scale and soft cap of the scores.
    implementation: the kernel, see `resjax.kernels.self_attention.causal_attention`.
    dtype: the dtype of the activations.
    layout: the mesh and sharding rules of the activations.
    rngs: the source of the initial values.
  """

  def __init__(
    self,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    qk_norm: str,
    norm_eps: float,
    bias: bool,
    qkv_bias: bool = False,
    std: float,
    value_std: float,
    out_std: float,
    scores: Scores = PLAIN,
    implementation: str,
    dtype: jax.typing.DTypeLike,
    layout: Layout,
    rngs: nnx.Rngs,
  ):
    self.scores, self.implementation, self.layout = scores, implementation, layout
    common: dict[str, Any] = {"dtype": dtype, "layout": layout}
    keys, inward = Keys(rngs), ("embed_param", "heads")
    into = common | {"bias": bias or qkv_bias}
    heads, kv_heads = (num_heads, head_dim), (num_kv_heads, head_dim)
    size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
    self.q_proj = Linear(
      d_model, size, inward, std=std, out_heads=heads, rngs=keys("q_proj"), **into
    )
    self.k_proj = Linear(
      d_model, kv_size, inward, std=std, out_heads=kv_heads, rngs=keys("k_proj"), **into
    )
    self.v_proj = Linear(
      d_model, kv_size, inward, std=value_std, out_heads=kv_heads, rngs=keys("v_proj"), **into
    )
    out = common | {"bias": bias, "in_heads": heads}
    self.o_proj = Linear(size, d_model, inward[::-1], std=out_std, rngs=keys("o_proj"), **out)
    each: dict[str, Any] = {"eps": norm_eps, "bias": False, "dtype": dtype, "rngs": rngs}
    widths = {"head": (head_dim, head_dim), "heads": (size, kv_size)}.get(qk_norm)
    self.norm_axes = 2 if qk_norm == "heads" else 1
    self.q_norm = make_norm("rmsnorm", widths[0], **each) if widths else Identity()
    self.k_norm = make_norm("rmsnorm", widths[1], **each) if widths else Identity()

  @jax.named_scope("attention")
  def __call__(
    self,
    x_q: Float[Array, "B T D"],
    x_k: Float[Array, "B T D"],
    x_v: Float[Array, "B T D"],
    *,
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    window: Window = ALL_EARLIER,
    rotation: Rotation = NOT_ROTATED,
    mixers: Sequence[ValueMixer] = (),
    prompt: bool = False,
  ) -> tuple[Float[Array, "B T D"], KeyValues]:
    """Maps three normalised views, often one and the same, to an output.

    Args:
      x_q: the input of queries.
      x_k: the input of keys.
      x_v: the input of values.
      segment_ids: the segment of each token; tokens attend within their segment.
      positions: the position of each token for the rotation.
      window: how many of the last tokens a token sees.
      rotation: the rotary embedding of queries and keys.
      mixers: how values are mixed with others, applied in this order.
      prompt: whether rows may have any length, in memory linear in T.

    Returns:
      The output, and the keys and values [B, T, K, C] that the scores were made of.
    """
    q, k, v = self._project(x_q, x_k, x_v, positions, rotation, mixers)
    options: dict[str, Any] = {"scores": self.scores, "implementation": self.implementation}
    options |= {"layout": self.layout, "window": window, "prompt": prompt}
    out = causal_attention(q, k, v, segment_ids, **options)
    return self.o_proj(out), KeyValues(k, v)

  @jax.named_scope("attention")
  def decode(
    self,
    x_q: Array,
    x_k: Array,
    x_v: Array,
    past: KeyValues,
    *,
    length: Array | None,
    segment_ids: Array,
    keys: tuple[Array, Array],
    positions: Array,
    window: Window = ALL_EARLIER,
    rotation: Rotation = NOT_ROTATED,
    mixers: Sequence[ValueMixer] = (),
  ) -> tuple[Array, KeyValues]:
    """`__call__` for T tokens that follow earlier ones, in memory linear in T.

    Arguments that are not listed are the same as of `__call__`.

    Args:
      x_q: what queries are made of [B, T, D].
      x_k: what keys are made of [B, T, D].
      x_v: what values are made of [B, T, D].
      past: the keys and values of earlier tokens [B, S, K, C], see `KeyValues`.
      length: the number of slots of `past` that are filled, after which the new ones go; may be
        traced. None: `past` is full, and the new ones go behind it.
      segment_ids: the segment of each of the T tokens [B, T].
      keys: segments and positions of all keys, with the new ones in their place, [B, keys] each.

    Returns:
      The output [B, T, D], and the new keys and values [B, T, K, C].
    """
    q, k, v = self._project(x_q, x_k, x_v, positions, rotation, mixers)
    new = KeyValues(k, v)
    seen = past.joined(new) if length is None else past.stored(new, length)
    first = past.keys.shape[1] if length is None else length
    options: dict[str, Any] = {"window": window, "scores": self.scores}
    options["places"] = positions, keys[1]
    out = cached_attention(q, seen.keys, seen.values, segment_ids, keys[0], first, **options)
    return self.o_proj(out), new

  @jax.named_scope("attention")
  def values(self, x_v: Array) -> Array:
    """Returns the values W_v x_v [B, T, K, C] of a view [B, T, D]."""
    return self._heads(self.v_proj(x_v))

  def _project(
    self,
    x_q: Array,
    x_k: Array,
    x_v: Array,
    positions: Array,
    rotation: Rotation,
    mixers: Sequence[ValueMixer],
  ) -> tuple[Array, Array, Array]:
    """Returns queries [B, T, H, C], keys and values [B, T, K, C], as the kernel takes them."""
    views = {id(x): shared(x, self.layout, "heads") for x in (x_q, x_k, x_v)}
    x_q, x_k, x_v = (views[id(x)] for x in (x_q, x_k, x_v))
    q = self._heads(self.q_proj(x_q))
    k = self._heads(self.k_proj(x_k))
    v = self.values(x_v)
    q, k = self._normed(self.q_norm, q), self._normed(self.k_norm, k)
    platform = self.layout.platform
    q, k = rope(q, positions, rotation, platform), rope(k, positions, rotation, platform)
    for mixer in mixers:
      v = mixer.mix(v, Projected(x_v, q, k))
    return q, k, v

  def _normed(self, by: Norm, x: Array) -> Array:
    """Returns normalised queries or keys [B, T, H, C]."""
    if self.norm_axes == 1:
      return by(x)
    return self._heads(by(x.reshape(*x.shape[:2], -1)).reshape(x.shape))

  def _heads(self, x: Array) -> Array:
    return self.layout.constrain(x, "batch", "tokens", "heads", None)
