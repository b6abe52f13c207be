"""Rotary position embedding."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from resjax.typing import Array

SCALINGS = ("none", "linear", "llama3")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """How wavelengths are stretched for rows that are longer than those of pretraining.

  linear: all by `factor` (position interpolation, arXiv 2306.15595). llama3: those longer than
  n / low_freq_factor by `factor`, those shorter than n / high_freq_factor not at all, and the
  frequencies between them by a share of both that is linear in n / wavelength, with
  n = original_max_positions (Llama 3.1, arXiv 2407.21783).
  """

  kind: str = "none"
  factor: float = 1.0
  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0
  original_max_positions: int = 0


@dataclasses.dataclass(frozen=True)
class Rope:
  """Frequencies of a rotation.

  Attributes:
    theta: base of the wavelengths.
    fraction: of each head that is rotated, its first part.
    scaling: of the wavelengths.
  """

  theta: float
  fraction: float = 1.0
  scaling: RopeScaling = RopeScaling()

  def width(self, head_dim: int) -> int:
    """Returns how many values of a head are rotated."""
    return int(head_dim * self.fraction)

  def frequencies(self, head_dim: int) -> np.ndarray:
    """Returns the angle per position of each pair, float32 [width / 2]."""
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


def rope(x: Array, positions: Array, rotation: Rope) -> Array:
  """Rotates the pairs (x_i, x_{i + W/2}) of every head by position · frequency_i.

  With frequency_i = theta^(−2i/W) unless scaled; W values of a head are rotated, its first ones.

  Args:
    x: queries or keys [B, T, H, C].
    positions: [B, T], integers.
    rotation: W, even, and the frequencies.

  Returns:
    [B, T, H, C] in the dtype of x; angles are float32.

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
