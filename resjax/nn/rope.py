"""Rotary position embedding."""

import jax.numpy as jnp

from resjax.typing import Array


def rope(x: Array, positions: Array, *, theta: float) -> Array:
  """Rotates the pairs (x_i, x_{i + C/2}) of every head by the angle position · theta^(−2i/C).

  Args:
    x: queries or keys [B, T, H, C], C even.
    positions: [B, T], integers.
    theta: base of the wavelengths.

  Returns:
    [B, T, H, C] in the dtype of x; angles are float32.

  Source: RoFormer, arXiv 2104.09864, in the half-split layout of Llama checkpoints.
  """
  half = x.shape[-1] // 2
  wavelengths = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  angles = positions[:, :, None, None].astype(jnp.float32) * wavelengths  # [B, T, 1, C/2]
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
  return rotated.astype(x.dtype)
