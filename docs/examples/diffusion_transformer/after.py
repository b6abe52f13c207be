"""A diffusion transformer in Flax Linen (DiT, arXiv 2212.09748): blocks conditioned by adaLN-Zero.

The condition, time and class, gives each branch a shift and a scale of its input and a gate of its
output. These start at zero, so that at init every block is the identity.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from resjax.interop import Residual, ResidualStream


def modulated(x: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
  """Returns x (1 + scale) + shift, where x is [B, T, D] and the others are [B, D]."""
  return x * (1 + scale[:, None]) + shift[:, None]


def time_features(time: jax.Array, size: int) -> jax.Array:
  """Returns cosines and sines [B, size] of times [B] in 0..1."""
  angles = time[:, None] * jnp.geomspace(1.0, 100.0, size // 2)
  return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


class Block(nn.Module):
  """Attention and MLP, each behind a norm without parameters."""

  d_model: int
  num_heads: int
  kernel_init: nn.initializers.Initializer

  def setup(self) -> None:
    """Makes the norm, the branches, and the map from the condition to shifts, scales and gates."""
    self.norm = nn.LayerNorm(use_scale=False, use_bias=False)
    self.attend = nn.MultiHeadDotProductAttention(self.num_heads, kernel_init=self.kernel_init)
    self.up = nn.Dense(4 * self.d_model, kernel_init=self.kernel_init)
    self.down = nn.Dense(self.d_model, kernel_init=self.kernel_init)
    self.condition = nn.Dense(6 * self.d_model, kernel_init=nn.initializers.zeros)

  def __call__(self, x: ResidualStream, condition: jax.Array) -> ResidualStream:
    """Returns the residual stream after the block; condition: [B, D]."""
    shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = jnp.split(
      self.condition(nn.silu(condition)), 6, axis=-1
    )

    def attention(*qkv: jax.Array) -> jax.Array:
      return gate_1[:, None] * self.attend(*(modulated(x, shift_1, scale_1) for x in qkv))

    def mlp(x: jax.Array) -> jax.Array:
      return gate_2[:, None] * self.down(nn.gelu(self.up(modulated(x, shift_2, scale_2))))

    x = x.sublayer("attention", self.norm, attention, "qkv")
    return x.sublayer("mlp", self.norm, mlp)


class Model(nn.Module):
  """Turns noisy patches [B, T, P], times [B] in 0..1 and classes [B] into velocities [B, T, P]."""

  kind: str
  num_classes: int = 10
  num_layers: int = 4
  d_model: int = 48
  num_heads: int = 4

  @nn.compact
  def __call__(self, patches: jax.Array, time: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the velocity [B, T, P] of each patch at its time."""
    residual = Residual(self.kind, self.num_layers, self.d_model, scaled_init=True)
    init = residual.branch_init(nn.initializers.lecun_normal())
    positions = nn.Embed(patches.shape[1], self.d_model)(jnp.arange(patches.shape[1]))
    x = residual(nn.Dense(self.d_model)(patches) + positions)
    hidden = nn.silu(nn.Dense(self.d_model)(time_features(time, self.d_model)))
    condition = nn.Dense(self.d_model)(hidden) + nn.Embed(self.num_classes, self.d_model)(labels)
    for _ in range(self.num_layers):
      x = Block(self.d_model, self.num_heads, init)(x, condition)
    x = x.final(nn.LayerNorm(use_scale=False, use_bias=False))
    shift, scale = jnp.split(
      nn.Dense(2 * self.d_model, kernel_init=nn.initializers.zeros)(nn.silu(condition)), 2, axis=-1
    )
    return nn.Dense(patches.shape[-1])(modulated(x, shift, scale))
