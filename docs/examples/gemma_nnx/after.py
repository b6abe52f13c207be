"""A decoder in NNX in the style of Gemma 2 and 3 and Qwen 3.

Grouped-query attention with rotary positions and normalised queries and keys, a gated MLP, norms
before and after each branch, and embeddings scaled by √D that are also the output.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from resjax import combinators
from resjax.models import ResidualStream, branch_init


def rotated(x: jax.Array, base: float = 10_000.0) -> jax.Array:
  """Returns heads [B, T, H, C] with their two halves rotated by angles t · base^(-2i/C)."""
  half = x.shape[-1] // 2
  angles = jnp.arange(x.shape[1])[:, None] * base ** (-jnp.arange(half) / half)
  cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
  a, b = x[..., :half], x[..., half:]
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


class Attention(nnx.Module):
  """Causal attention in which several query heads share one head of keys and values."""

  def __init__(
    self, d_model: int, num_heads: int, num_kv_heads: int, init: nnx.Initializer, rngs: nnx.Rngs
  ):
    size = d_model // num_heads
    plain, scaled = {"use_bias": False, "rngs": rngs}, {"use_bias": False, "kernel_init": init}
    self.query = nnx.LinearGeneral(d_model, (num_heads, size), **plain)
    self.key = nnx.LinearGeneral(d_model, (num_kv_heads, size), **plain)
    self.value = nnx.LinearGeneral(d_model, (num_kv_heads, size), **scaled, rngs=rngs)
    self.out = nnx.LinearGeneral((num_heads, size), d_model, axis=(-2, -1), **scaled, rngs=rngs)
    self.query_norm, self.key_norm = (nnx.RMSNorm(size, rngs=rngs) for _ in range(2))

  def __call__(self, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Returns for each token a mix of it and earlier ones, [B, T, D]."""
    q, k, v = self.query(q), self.key(k), self.value(v)
    q, k = rotated(self.query_norm(q)), rotated(self.key_norm(k))
    return self.out(jax.nn.dot_product_attention(q, k, v, is_causal=True))


class GatedMlp(nnx.Module):
  """Computes W_down (gelu(W_gate x) ⊙ W_up x)."""

  def __init__(self, d_model: int, hidden: int, init: nnx.Initializer, rngs: nnx.Rngs):
    scaled = {"use_bias": False, "kernel_init": init, "rngs": rngs}
    self.gate = nnx.Linear(d_model, hidden, **scaled)
    self.up = nnx.Linear(d_model, hidden, **scaled)
    self.down = nnx.Linear(hidden, d_model, **scaled)

  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns what each token becomes by itself, [B, T, D]."""
    return self.down(nnx.gelu(self.gate(x)) * self.up(x))


class Block(nnx.Module):
  """Attention and MLP, each between two norms."""

  def __init__(
    self, d_model: int, num_heads: int, num_kv_heads: int, init: nnx.Initializer, rngs: nnx.Rngs
  ):
    self.attention = Attention(d_model, num_heads, num_kv_heads, init, rngs)
    self.mlp = GatedMlp(d_model, 3 * d_model, init, rngs)
    self.pre_attention, self.post_attention = (nnx.RMSNorm(d_model, rngs=rngs) for _ in range(2))
    self.pre_mlp, self.post_mlp = (nnx.RMSNorm(d_model, rngs=rngs) for _ in range(2))

  def __call__(self, x: ResidualStream) -> ResidualStream:
    """Returns the residual stream after the block."""
    attention = nnx.Sequential(self.attention, self.post_attention)
    x = x.sublayer("attention", self.pre_attention, attention, "qkv")
    return x.sublayer("mlp", self.pre_mlp, lambda x: self.post_mlp(self.mlp(x)))


class Model(nnx.Module):
  """Turns tokens [B, T] into logits [B, T, V]."""

  def __init__(
    self,
    kind: str,
    vocab_size: int = 256,
    num_layers: int = 4,
    d_model: int = 48,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    *,
    rngs: nnx.Rngs,
  ):
    self.d_model = d_model
    self.embed = nnx.Embed(
      vocab_size, d_model, embedding_init=nnx.initializers.normal(d_model**-0.5), rngs=rngs
    )
    self.combinator = combinators.build(kind, num_layers=num_layers, d_model=d_model, rngs=rngs)
    init = branch_init(self.combinator, nnx.initializers.lecun_normal())
    self.blocks = nnx.List(
      [Block(d_model, num_heads, num_kv_heads, init, rngs) for _ in range(num_layers)]
    )
    self.norm = nnx.RMSNorm(d_model, rngs=rngs)

  def __call__(self, tokens: jax.Array) -> jax.Array:
    """Returns the logits [B, T, V] of each next token."""
    x = ResidualStream.start(self.combinator, self.embed(tokens) * self.d_model**0.5)
    for block in self.blocks:
      x = block(x)
    return self.embed.attend(x.final(self.norm))
