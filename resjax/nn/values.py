"""What an attention mixes into its values before tokens are mixed, token by token."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from resjax.base import Array, wide_dtype
from resjax.base.sharding import Layout
from resjax.kernels import sum_of_products
from resjax.nn.kv_cache import KeyValues
from resjax.nn.linear import Linear


class Projected(NamedTuple):
  """The input, queries and keys of an attention, for mixers of its values.

  Attributes:
    x: the normalised input of the values [B, T, D].
    q: the queries [B, T, H, C], normalised and rotated as the scores need them.
    k: the keys [B, T, K, C], likewise.
  """

  x: Array
  q: Array
  k: Array


@runtime_checkable
class ValueMixer(Protocol):
  """Replaces the values of an attention; every token and head for itself."""

  def mix(self, v: Array, projected: Projected) -> Array:
    """Returns the values [B, T, K, C] in place of v, in its dtype; sums are float32 or wider."""
    ...


@dataclasses.dataclass(frozen=True)
class ValueResidual:
  """v ← λ₁ v + λ₂ v₁, where v₁ are the values of the first layer.

  Attributes:
    weights: the weights λ₁ and λ₂ [2].
    first: the values v₁ [B, T, K, C].

  Source: ResFormer, arXiv 2410.17897.
  """

  weights: Array
  first: Array

  def mix(self, v: Array, projected: Projected) -> Array:  # noqa: D102
    wide = wide_dtype(v)
    own, first = self.weights.astype(wide)
    return (own * v.astype(wide) + first * self.first.astype(wide)).astype(v.dtype)


def _softmax(z: Array) -> Array:
  return z.shape[-1] * jax.nn.softmax(z, axis=-1)


GATES: dict[str, Callable[[Array], Array]] = {
  "relu": jax.nn.relu,
  "sigmoid": jax.nn.sigmoid,
  "tanh": jnp.tanh,
  "identity": lambda z: z,
  "softmax": _softmax,
  "softmax_sigmoid": lambda z: _softmax(z) * jax.nn.sigmoid(z),
}


@dataclasses.dataclass(frozen=True)
class GatedValues:
  """v ← v + α ⊙ v₁ with α = gate(W x), one number per token and head.

  v₁ are the values of the first layer. Nothing is convex: v keeps the weight 1.

  Attributes:
    project: the map W, D to K.
    gate: one of `GATES`; the softmaxes are over the K heads, and times K.
    on: 1 in a layer that does so, 0 in others, where v stays; a scalar.
    first: the values v₁ [B, T, K, C].
    layout: the mesh and sharding rules of the activations.

  Source: SATFormer, arXiv 2605.03953.
  """

  project: Linear
  gate: str
  on: Array
  first: Array
  layout: Layout

  def mix(self, v: Array, projected: Projected) -> Array:  # noqa: D102
    logits = self.layout.constrain(self.project(projected.x), "batch", "tokens", "heads")
    share = self.on * GATES[self.gate](logits.astype(wide_dtype(v)))
    wide = share.dtype
    return (v.astype(wide) + share[..., None] * self.first.astype(wide)).astype(v.dtype)


@dataclasses.dataclass(frozen=True)
class DepthValues:
  """v ← Σ_j a_j v_j + a v, a softmax over some earlier layers j and the layer itself.

  The scores are s_j = q̄ · k_j and s = q̄ · k, times `scale`, where q̄ is the mean of the queries
  of the heads that share a key head. Keys are as the attention has them, and the v_j mixed already.
  With `share` λ, v ← v + λ (the sum - v).

  Queries and keys of a token stand at one position, so a rotation that both layers share changes
  no score.

  Attributes:
    sources: keys and values of the same tokens in N slots [N, B, T, K, C].
    seen: whether a slot holds an earlier layer of this one's [N].
    scale: the factor of the scores.
    share: λ, a scalar; None: 1.

  Source: Depth-Attention, arXiv 2606.05014.
  """

  sources: KeyValues
  seen: Array
  scale: float
  share: Array | None = None

  def mix(self, v: Array, projected: Projected) -> Array:  # noqa: D102
    q, k = projected.q, projected.k
    batch, length, heads, width = k.shape
    wide = wide_dtype(v)
    q = jnp.mean(q.reshape(batch, length, heads, -1, width), axis=3, dtype=wide) * self.scale
    earlier = jnp.sum(q[None] * self.sources.keys.astype(wide), axis=-1)
    earlier = jnp.where(self.seen[:, None, None, None], earlier, -jnp.inf)
    scores = jnp.concatenate([earlier, jnp.sum(q * k.astype(wide), axis=-1)[None]])
    weights = jax.nn.softmax(scores, axis=0)[..., None]
    own = v.astype(wide)
    mixed = sum_of_products(weights[:-1], self.sources.values) + weights[-1] * own
    if self.share is not None:
      mixed = own + self.share * (mixed - own)
    return mixed.astype(v.dtype)
