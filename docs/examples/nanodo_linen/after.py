"""A decoder in Flax Linen in the style of nanodo: `setup()`, a list of blocks, `linen.remat`."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from resjax.interop import Residual, ResidualStream


class Attention(nn.Module):
  """Attention of every token to itself and to earlier ones."""

  d_model: int
  num_heads: int
  kernel_init: nn.initializers.Initializer

  @nn.compact
  def __call__(self, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Returns for each token a mix of it and earlier ones, [B, T, D]."""
    heads = (self.num_heads, self.d_model // self.num_heads)
    q = nn.DenseGeneral(heads, use_bias=False, name="query")(q)
    k = nn.DenseGeneral(heads, use_bias=False, name="key")(k)
    v = nn.DenseGeneral(heads, use_bias=False, kernel_init=self.kernel_init, name="value")(v)
    out = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return nn.DenseGeneral(
      self.d_model, axis=(-2, -1), use_bias=False, kernel_init=self.kernel_init
    )(out)


class Mlp(nn.Module):
  """Computes W_down gelu(W_up x)."""

  hidden: int
  kernel_init: nn.initializers.Initializer

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns what each token becomes by itself, [B, T, D]."""
    up = nn.Dense(self.hidden, use_bias=False, kernel_init=self.kernel_init)(x)
    return nn.Dense(x.shape[-1], use_bias=False, kernel_init=self.kernel_init)(nn.gelu(up))


class Block(nn.Module):
  """Attention and MLP, each behind a norm."""

  d_model: int
  num_heads: int
  kernel_init: nn.initializers.Initializer

  def setup(self) -> None:
    """Makes a norm and a branch for each of the two sites."""
    self.norm_1, self.norm_2 = nn.RMSNorm(), nn.RMSNorm()
    self.attention = Attention(self.d_model, self.num_heads, self.kernel_init)
    self.mlp = Mlp(4 * self.d_model, self.kernel_init)

  def __call__(self, x: ResidualStream) -> ResidualStream:
    """Returns the residual stream after the block."""
    x = x.sublayer("attention", self.norm_1, self.attention, "qkv")
    return x.sublayer("mlp", self.norm_2, self.mlp)


class Model(nn.Module):
  """Turns tokens [B, T] into logits [B, T, V]; of a block only its input is kept."""

  kind: str
  vocab_size: int = 256
  num_layers: int = 4
  d_model: int = 48
  num_heads: int = 4
  max_positions: int = 64

  def setup(self) -> None:
    """Makes embeddings of tokens and positions, the blocks, and the final norm."""
    self.embed = nn.Embed(self.vocab_size, self.d_model)
    self.positions = nn.Embed(self.max_positions, self.d_model)
    self.residual = Residual(self.kind, self.num_layers, self.d_model, scaled_init=True)
    init = self.residual.branch_init(nn.initializers.lecun_normal())
    block = nn.remat(Block)
    self.blocks = [block(self.d_model, self.num_heads, init) for _ in range(self.num_layers)]
    self.norm = nn.RMSNorm()

  def __call__(self, tokens: jax.Array) -> jax.Array:
    """Returns the logits [B, T, V] of each next token."""
    x = self.residual(self.embed(tokens) + self.positions(jnp.arange(tokens.shape[1])))
    for block in self.blocks:
      x = block(x)
    return self.embed.attend(x.final(self.norm))
