"""A decoder in Flax Linen whose layers are one `linen.scan` over `linen.remat` of a block."""

import jax
import jax.numpy as jnp
from flax import linen as nn


class Attention(nn.Module):
  """Attention of every token to itself and to earlier ones."""

  d_model: int
  num_heads: int
  kernel_init: nn.initializers.Initializer

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns for each token a mix of it and earlier ones, [B, T, D]."""
    heads = (self.num_heads, self.d_model // self.num_heads)
    q = nn.DenseGeneral(heads, use_bias=False, name="query")(x)
    k = nn.DenseGeneral(heads, use_bias=False, name="key")(x)
    v = nn.DenseGeneral(heads, use_bias=False, kernel_init=self.kernel_init, name="value")(x)
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

  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns the residual stream after the block."""
    x = x + self.attention(self.norm_1(x))
    return x + self.mlp(self.norm_2(x))


class Model(nn.Module):
  """Turns tokens [B, T] into logits [B, T, V]; the parameters of blocks have a leading axis L."""

  vocab_size: int = 256
  num_layers: int = 4
  d_model: int = 48
  num_heads: int = 4
  max_positions: int = 64

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    """Returns the logits [B, T, V] of each next token."""
    embed = nn.Embed(self.vocab_size, self.d_model)
    x = embed(tokens) + nn.Embed(self.max_positions, self.d_model)(jnp.arange(tokens.shape[1]))
    init = nn.initializers.lecun_normal()
    block = nn.remat(Block, prevent_cse=False)(self.d_model, self.num_heads, init, name="layers")
    scan = nn.scan(
      lambda block, x, _: (block(x), None),
      variable_axes={"params": 0},
      split_rngs={"params": True},
      length=self.num_layers,
    )
    x, _ = scan(block, x, None)
    return embed.attend(nn.RMSNorm()(x))
