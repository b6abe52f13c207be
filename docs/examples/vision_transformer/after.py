"""A vision transformer in NNX: patches as tokens, attention without a mask, a list of blocks."""

import jax
from flax import nnx

from resjax import combinators
from resjax.models import ResidualStream, branch_init


class Block(nnx.Module):
  """Attention and MLP, each behind a norm."""

  def __init__(self, d_model: int, num_heads: int, init: nnx.Initializer, rngs: nnx.Rngs):
    self.norm_1, self.norm_2 = (nnx.LayerNorm(d_model, rngs=rngs) for _ in range(2))
    self.attention = nnx.MultiHeadAttention(
      num_heads, d_model, kernel_init=init, decode=False, rngs=rngs
    )
    self.up = nnx.Linear(d_model, 4 * d_model, kernel_init=init, rngs=rngs)
    self.down = nnx.Linear(4 * d_model, d_model, kernel_init=init, rngs=rngs)

  def mlp(self, x: jax.Array) -> jax.Array:
    """Returns W_down gelu(W_up x), [B, T, D]."""
    return self.down(nnx.gelu(self.up(x)))

  def __call__(self, x: ResidualStream) -> ResidualStream:
    """Returns the residual stream after the block."""
    x = x.sublayer("attention", self.norm_1, self.attention, "qkv")
    return x.sublayer("mlp", self.norm_2, self.mlp)


class Model(nnx.Module):
  """Turns patches [B, T, P] into logits of classes [B, 10]."""

  def __init__(
    self,
    kind: str,
    num_patches: int = 16,
    patch_size: int = 4,
    num_classes: int = 10,
    num_layers: int = 4,
    d_model: int = 48,
    num_heads: int = 4,
    *,
    rngs: nnx.Rngs,
  ):
    self.embed = nnx.Linear(patch_size, d_model, rngs=rngs)
    self.positions = nnx.Param(0.1 * rngs.params.normal((num_patches, d_model)))
    self.combinator = combinators.build(kind, num_layers=num_layers, d_model=d_model, rngs=rngs)
    init = branch_init(self.combinator, nnx.initializers.lecun_normal())
    self.blocks = nnx.List([Block(d_model, num_heads, init, rngs) for _ in range(num_layers)])
    self.norm = nnx.LayerNorm(d_model, rngs=rngs)
    self.head = nnx.Linear(d_model, num_classes, rngs=rngs)

  def __call__(self, patches: jax.Array) -> jax.Array:
    """Returns the logits [B, 10]; a picture is the mean of its tokens."""
    x = ResidualStream.start(self.combinator, self.embed(patches) + self.positions[...])
    for block in self.blocks:
      x = block(x)
    return self.head(x.final(self.norm).mean(axis=1))
