"""Rotary position embedding."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

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
def rope(x: Array, positions: Array, rotation: Rope, platform: str) -> Array:
  """Rotates the pairs (x_i, x_{i + W/2}) of every head by position · frequency_i.

  The first W values of a head are rotated; frequency_i = theta^(−2i/W) unless it is scaled. The
  result is x · cos + turned(x) · sin, where a quarter turn makes (−x_{i + W/2}, x_i) of each pair.

  Args:
    x: queries or keys [B, T, H, C].
    positions: the positions of the tokens, integers [B, T].
    rotation: the frequencies, and W, which is even.
    platform: where the program will run; a TPU turns by a matrix product, see `_quarter_turn`.

  Returns:
    The rotated x [B, T, H, C] in its dtype; angles and sums are computed in float32.

  Source: RoFormer, arXiv 2104.09864, in the half-split layout of Llama checkpoints.
  """
  head_dim = x.shape[-1]
  pairs, width = rotation.frequencies(head_dim), rotation.width(head_dim)
  # What is not rotated has the angle 0.
  frequencies = np.concatenate([pairs, pairs, np.zeros(head_dim - width, np.float32)])
  angles = positions[:, :, None, None].astype(jnp.float32) * frequencies  # [B, T, 1, C]
  return _rotated(x, jnp.cos(angles), jnp.sin(angles), width, platform == "tpu")


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _rotated(x: Array, cos: Array, sin: Array, width: int, by_product: bool) -> Array:
  """Returns x · cos + turned(x) · sin [B, T, H, C]; cos and sin are [B, T, 1, C]."""
  turned = _quarter_turn(x, width, by_product)
  return (x.astype(jnp.float32) * cos + turned.astype(jnp.float32) * sin).astype(x.dtype)


def _rotated_forward(
  x: Array, cos: Array, sin: Array, width: int, by_product: bool
) -> tuple[Array, tuple[Array, Array]]:
  return _rotated(x, cos, sin, width, by_product), (cos, sin)


def _rotated_backward(
  width: int, by_product: bool, saved: tuple[Array, Array], grad: Array
) -> tuple[Array, None, None]:
  # The reverse of a rotation is the one by the opposite angle. JAX's own rule would turn the
  # product grad · sin, which is float32, and on a TPU would round it.
  cos, sin = saved
  return _rotated(grad, cos, -sin, width, by_product), None, None


_rotated.defvjp(_rotated_forward, _rotated_backward)


def _quarter_turn(x: Array, width: int, by_product: bool) -> Array:
  """Returns (−x_{i + W/2}, x_i) in place of each pair of [..., C], and 0 for what is not rotated.

  A TPU's vector registers hold 128 values of the last axis, so the halves of a head fill half of
  each, in memory too. There the turn is a product with a constant matrix of 0, 1 and −1, which is
  exact, keeps full registers, and becomes part of the operations around it. Elsewhere the product
  would be an operation of its own, and the halves are not.
  """
  half = width // 2
  if by_product:
    turn = np.zeros((x.shape[-1], x.shape[-1]))
    pairs = np.arange(half)
    turn[pairs + half, pairs], turn[pairs, pairs + half] = -1, 1
    # At a lower precision the product would round float32.
    return jnp.matmul(x, jnp.asarray(turn, x.dtype), precision=lax.Precision.HIGHEST)
  first, second, rest = jnp.split(x, [half, width], axis=-1)
  return jnp.concatenate([-second, first, jnp.zeros_like(rest)], axis=-1)
