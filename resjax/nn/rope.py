"""Rotary position embedding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from resjax.typing import Array

SCALINGS = ("none", "linear", "llama3")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """How wavelengths are stretched for rows that are longer than those of pretraining.

  `linear` stretches all wavelengths by `factor` (position interpolation, arXiv 2306.15595).
  `llama3` (Llama 3.1, arXiv 2407.21783), with n = original_max_positions, stretches those longer
  than n / low_freq_factor by `factor`, leaves those shorter than n / high_freq_factor as they are,
  and interpolates between both frequencies linearly in n / wavelength for the others.

  Attributes:
    kind: one of `SCALINGS`.
    factor: by how much wavelengths are stretched.
    low_freq_factor: see `llama3`.
    high_freq_factor: see `llama3`.
    original_max_positions: the length of the rows of pretraining in tokens, for `llama3`.
  """

  kind: str = "none"
  factor: float = 1.0
  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0
  original_max_positions: int = 0


@dataclasses.dataclass(frozen=True)
class Rope:
  """The frequencies of a rotation.

  Attributes:
    theta: the base of the wavelengths.
    fraction: the part of each head that is rotated, which is its first part.
    scaling: how the wavelengths are stretched.
  """

  theta: float
  fraction: float = 1.0
  scaling: RopeScaling = RopeScaling()

  def width(self, head_dim: int) -> int:
    """Returns the number of values of a head that are rotated, W."""
    return int(head_dim * self.fraction)

  def frequencies(self, head_dim: int) -> np.ndarray:
    """Returns the angle per position of each pair, in radians, float32 [W / 2]."""
    width, scaling = self.width(head_dim), self.scaling
    plain = self.theta ** -(np.arange(0, width, 2) / width)
    if scaling.kind == "none":
      return plain.astype(np.float32)
    if scaling.kind == "linear":
      return (plain / scaling.factor).astype(np.float32)
    turns = scaling.original_max_positions * plain / (2 * np.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (kept * plain + (1 - kept) * plain / scaling.factor).astype(np.float32)


@jax.named_scope("rope")
def rope(x: Array, positions: Array, rotation: Rope) -> Array:
  """Rotates the pairs (x_i, x_{i + W/2}) of every head by position · frequency_i.

  The first W values of a head are rotated; frequency_i = theta^(−2i/W) unless it is scaled.

  Args:
    x: queries or keys [B, T, H, C].
    positions: the positions of the tokens, integers [B, T].
    rotation: the frequencies, and W, which is even.

  Returns:
    The rotated x [B, T, H, C] in its dtype; angles are computed in float32.

  Source: RoFormer, arXiv 2104.09864, in the half-split layout of Llama checkpoints.
  """
  width = rotation.width(x.shape[-1])
  frequencies = rotation.frequencies(x.shape[-1])
  angles = positions[:, :, None, None].astype(jnp.float32) * frequencies  # [B, T, 1, W/2]
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  first, second = jnp.split(x[..., :width].astype(jnp.float32), 2, axis=-1)
  rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
  rotated = rotated.astype(x.dtype)
  return rotated if width == x.shape[-1] else jnp.concatenate([rotated, x[..., width:]], axis=-1)
