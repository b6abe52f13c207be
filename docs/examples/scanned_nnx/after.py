"""A decoder in NNX whose layers are one `nnx.scan` over `nnx.remat` of a block."""

import jax
import jax.numpy as jnp
from flax import nnx

from resjax import combinators
from resjax.models import ResidualStream, branch_init


class Attention(nnx.Module):
  """Attention of every token to itself and to earlier ones."""

  def __init__(self, d_model: int, num_heads: int, init: nnx.Initializer, rngs: nnx.Rngs):
    self.heads = (num_heads, d_model // num_heads)
    self.query = nnx.LinearGeneral(d_model, self.heads, use_bias=False, rngs=rngs)
    self.key = nnx.LinearGeneral(d_model, self.heads, use_bias=False, rngs=rngs)
    scaled = {"use_bias": False, "kernel_init": init, "rngs": rngs}
    self.value = nnx.LinearGeneral(d_model, self.heads, **scaled)
    self.out = nnx.LinearGeneral(self.heads, d_model, axis=(-2, -1), **scaled)

  def __call__(self, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Returns for each token a mix of it and earlier ones, [B, T, D]."""
    q, k, v = self.query(q), self.key(k), self.value(v)
    return self.out(jax.nn.dot_product_attention(q, k, v, is_causal=True))


class Mlp(nnx.Module):
  """Computes W_down gelu(W_up x)."""

  def __init__(self, d_model: int, init: nnx.Initializer, rngs: nnx.Rngs):
    scaled = {"use_bias": False, "kernel_init": init, "rngs": rngs}
    self.up = nnx.Linear(d_model, 4 * d_model, **scaled)
    self.down = nnx.Linear(4 * d_model, d_model, **scaled)

  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns what each token becomes by itself, [B, T, D]."""
    return self.down(nnx.gelu(self.up(x)))


class Block(nnx.Module):
  """Attention and MLP, each behind a norm."""

  def __init__(self, d_model: int, num_heads: int, init: nnx.Initializer, rngs: nnx.Rngs):
    self.norm_1, self.norm_2 = (nnx.RMSNorm(d_model, rngs=rngs) for _ in range(2))
    self.attention = Attention(d_model, num_heads, init, rngs)
    self.mlp = Mlp(d_model, init, rngs)

  def __call__(self, x: ResidualStream) -> ResidualStream:
    """Returns the residual stream after the block."""
    x = x.sublayer("attention", self.norm_1, self.attention, "qkv")
    return x.sublayer("mlp", self.norm_2, self.mlp)


class Model(nnx.Module):
  """Turns tokens [B, T] into logits [B, T, V]; the parameters of blocks have a leading axis L."""

  def __init__(
    self,
    kind: str,
    vocab_size: int = 256,
    num_layers: int = 4,
    d_model: int = 48,
    num_heads: int = 4,
    max_positions: int = 64,
    *,
    rngs: nnx.Rngs,
  ):
    self.embed = nnx.Embed(vocab_size, d_model, rngs=rngs)
    self.positions = nnx.Embed(max_positions, d_model, rngs=rngs)
    self.combinator = combinators.build(kind, num_layers=num_layers, d_model=d_model, rngs=rngs)
    init = branch_init(self.combinator, nnx.initializers.lecun_normal())
    make = nnx.vmap(lambda rngs: Block(d_model, num_heads, init, rngs))
    self.layers = nnx.split_rngs(splits=num_layers)(make)(rngs)
    self.norm = nnx.RMSNorm(d_model, rngs=rngs)

  def __call__(self, tokens: jax.Array) -> jax.Array:
    """Returns the logits [B, T, V] of each next token."""
    x = self.embed(tokens) + self.positions(jnp.arange(tokens.shape[1]))
    x = ResidualStream.start(self.combinator, x).through(self.layers, remat="full")
    return self.embed.attend(x.final(self.norm))
