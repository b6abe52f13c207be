"""Multi-head causal self-attention."""

import dataclasses

import jax
from flax import nnx

from resjax.kernels.self_attention import (
  ALL_EARLIER,
  PLAIN,
  Scores,
  Window,
  causal_attention,
  masked_attention,
)
from resjax.nn.kv_cache import KeyValues
from resjax.nn.linear import Linear, shared
from resjax.nn.norm import norm
from resjax.nn.rope import Rope, rope
from resjax.sharding import Layout
from resjax.typing import Array, wide_dtype


@dataclasses.dataclass(frozen=True)
class ValueResidual:
  """v ← λ₁ v + λ₂ v₁, with the values v₁ of the first layer.

  Attributes:
    weights: λ₁ and λ₂ [2].
    first: v₁ [B, T, K, C].

  Source: ResFormer, arXiv 2410.17897.
  """

  weights: Array
  first: Array

  def mix(self, v: Array) -> Array:
    """Returns the mixed values [B, T, K, C], summed in float32 or wider, in the dtype of v."""
    own, first = self.weights.astype(wide_dtype(v))
    return (own * v + first * self.first).astype(v.dtype)


class Attention(nnx.Module):
  """W_o softmax(q kᵀ / √C) v with q = W_q x_q, k = W_k x_k, v = W_v x_v, grouped-query form.

  What else scores may be, see `resjax.kernels.self_attention.Scores`.

  Args:
    d_model: D.
    num_heads: H.
    num_kv_heads: K; H is a multiple of K.
    head_dim: C.
    rotation: the rotary embedding; None: no rotation.
    qk_norm: RMSNorm of every query and key head before the rotation.
    norm_eps: of that norm.
    bias: whether the linear maps have biases.
    qkv_bias: whether those of q, k and v have, whatever `bias` says.
    std: standard deviation of W_q and W_k at init.
    value_std: of W_v.
    out_std: of W_o.
    scores: scale and soft cap.
    implementation: see `resjax.kernels.self_attention.causal_attention`.
    dtype: of the activations.
    layout: of the activations.
    rngs: source of the initial values.
  """

  def __init__(
    self,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    rotation: Rope | None,
    qk_norm: bool,
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
    self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
    self.rotation, self.scores = rotation, scores
    self.implementation, self.layout = implementation, layout
    common = {"dtype": dtype, "layout": layout, "rngs": rngs}
    inward = ("embed_param", "heads")
    into = common | {"bias": bias or qkv_bias}
    self.q_proj = Linear(d_model, num_heads * head_dim, inward, std=std, **into)
    self.k_proj = Linear(d_model, num_kv_heads * head_dim, inward, std=std, **into)
    self.v_proj = Linear(d_model, num_kv_heads * head_dim, inward, std=value_std, **into)
    out = common | {"bias": bias}
    self.o_proj = Linear(num_heads * head_dim, d_model, inward[::-1], std=out_std, **out)
    heads = {"eps": norm_eps, "bias": False, "dtype": dtype, "rngs": rngs}
    self.q_norm = norm("rmsnorm", head_dim, **heads) if qk_norm else None
    self.k_norm = norm("rmsnorm", head_dim, **heads) if qk_norm else None

  def __call__(
    self,
    x_q: Array,
    x_k: Array,
    x_v: Array,
    *,
    segment_ids: Array,
    positions: Array,
    window: Window = ALL_EARLIER,
    residual: ValueResidual | None = None,
  ) -> Array:
    """Maps three normalised views [B, T, D] (often the same one) to [B, T, D].

    Args:
      x_q: what queries are made of.
      x_k: what keys are made of.
      x_v: what values are made of.
      segment_ids: [B, T].
      positions: [B, T].
      window: how many of the last tokens a token sees.
      residual: what is mixed into the values; None: nothing.
    """
    q, k, v = self._project(x_q, x_k, x_v, positions, residual)
    out = causal_attention(
      q,
      k,
      v,
      segment_ids,
      layout=self.layout,
      window=window,
      scores=self.scores,
      implementation=self.implementation,
    )
    return self._output(out)

  def decode(
    self,
    x_q: Array,
    x_k: Array,
    x_v: Array,
    past: KeyValues,
    *,
    length: Array | None,
    mask: Array,
    positions: Array,
    residual: ValueResidual | None = None,
  ) -> tuple[Array, KeyValues]:
    """Maps the views of T tokens that follow `length` others.

    Args:
      x_q: [B, T, D], and so are x_k and x_v, see `__call__`.
      x_k: what keys are made of.
      x_v: what values are made of.
      past: keys and values of earlier tokens [B, S, K, C], see `KeyValues`.
      length: number of earlier tokens; may be traced. None: `past` has just the last ones.
      mask: which of the extended keys each token sees, bool [B, T, keys].
      positions: [B, T].
      residual: see `__call__`.

    Returns:
      [B, T, D], and the new keys and values [B, T, K, C].
    """
    q, k, v = self._project(x_q, x_k, x_v, positions, residual)
    new = KeyValues(k, v)
    seen = past.joined(new) if length is None else past.stored(new, length)
    return self._output(masked_attention(q, seen.keys, seen.values, mask, self.scores)), new

  def values(self, x_v: Array) -> Array:
    """Returns W_v x_v [B, T, K, C]."""
    return self._heads(self.v_proj(x_v), self.num_kv_heads)

  def _project(self, x_q, x_k, x_v, positions, residual):
    views = {id(x): shared(x, self.layout, "heads") for x in (x_q, x_k, x_v)}
    x_q, x_k, x_v = (views[id(x)] for x in (x_q, x_k, x_v))
    q = self._heads(self.q_proj(x_q), self.num_heads)
    k = self._heads(self.k_proj(x_k), self.num_kv_heads)
    v = self.values(x_v)
    if residual is not None:
      v = residual.mix(v)
    if self.q_norm is not None:
      q, k = self.q_norm(q), self.k_norm(k)
    if self.rotation is not None:
      q, k = (rope(a, positions, self.rotation) for a in (q, k))
    return q, k, v

  def _output(self, out: Array) -> Array:
    return self.o_proj(out.reshape(*out.shape[:2], -1))

  def _heads(self, x: Array, num: int) -> Array:
    x = x.reshape(*x.shape[:2], num, self.head_dim)
    return self.layout.constrain(x, "batch", "tokens", "heads", None)
