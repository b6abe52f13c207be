"""Rotary position embedding."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from resjax.base import Array, aligned, wide_dtype
from resjax.nn.rope_scaling import RopeScaling


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
  scaling: RopeScaling = dataclasses.field(default_factory=RopeScaling)

  @property
  def short_length(self) -> int:
    """The most tokens of a document that `longrope` turns as a short one; 0: all turn alike."""
    return self.scaling.original_max_positions if self.scaling.kind == "longrope" else 0

  def width(self, head_dim: int) -> int:
    """Returns the number of values of a head that are rotated, W."""
    return int(head_dim * self.fraction)

  def frequencies(
    self, head_dim: int, is_long: bool = False, dtype: jax.typing.DTypeLike = np.float32
  ) -> np.ndarray:
    """Returns the angle per position of each pair, in radians, [W / 2] in a dtype.

    Args:
      head_dim: the width of a head C.
      is_long: whether `longrope` has its long factors.
      dtype: float32 or wider.
    """
    width = self.width(head_dim)
    if self.scaling.kind == "none":
      return (self.theta ** -(np.arange(0, width, 2) / width)).astype(dtype)
    return self.scaling.frequencies(self.theta, width, is_long, dtype)

  def gain(self) -> float:
    """Returns the factor of rotated queries and keys."""
    return 1.0 if self.scaling.kind == "none" else self.scaling.gain()


@dataclasses.dataclass(frozen=True)
class Rotation:
  """The rotation of a layer: one of those that the layers have.

  Layers of a scan are one program, so a layer chooses its rotation by an index that may be traced.

  Attributes:
    ropes: the different rotations, which turn equal parts of a head; None: no rotation.
    index: which of them this layer has, an integer; None: the only one.
    lengths: the number of tokens of the document that each token belongs to [B, T], which decides
      `longrope`; None: no document is long.
  """

  ropes: tuple[Rope | None, ...] = (None,)
  index: Array | None = None
  lengths: Array | None = None

  def width(self, head_dim: int) -> int:
    """Returns the number of values of a head that are rotated, W; 0: none."""
    return max((rope.width(head_dim) for rope in self.ropes if rope is not None), default=0)

  def tables(
    self, head_dim: int, dtype: jax.typing.DTypeLike
  ) -> tuple[Array | np.ndarray, Array | np.ndarray | None]:
    """Returns frequencies and gains of all values of a head, [C] in a dtype, float32 or wider.

    What is not rotated has frequency 0 and gain 1; the gains are None where all are 1. Where the
    length of a document decides, there are frequencies for every token, [B, T, 1, C].
    """
    frequencies = self._of_layer(self._frequencies(head_dim, False, dtype))
    borders = np.array([rope.short_length if rope else 0 for rope in self.ropes])
    if self.lengths is not None and borders.any():
      border = self._of_layer(borders)
      is_long = (self.lengths > border) & (border > 0)
      long = self._of_layer(self._frequencies(head_dim, True, dtype))
      chosen = is_long[:, :, None, None]
      long, short = (aligned(jnp.asarray(a), chosen) for a in (long, frequencies))
      frequencies = jnp.where(chosen, long, short)
    gains = np.ones((len(self.ropes), head_dim), dtype)
    width = self.width(head_dim)
    for row, rope in enumerate(self.ropes):
      gains[row, :width] = rope.gain() if rope else 1
    return frequencies, None if np.all(gains == 1) else self._of_layer(gains)

  def _frequencies(self, head_dim: int, is_long: bool, dtype: jax.typing.DTypeLike) -> np.ndarray:
    """Returns the frequencies of each rotation [ropes, C]."""
    found = np.zeros((len(self.ropes), head_dim), dtype)
    for row, rope in enumerate(self.ropes):
      if rope is not None:
        found[row, : self.width(head_dim)] = np.tile(rope.frequencies(head_dim, is_long, dtype), 2)
    return found

  def _of_layer(self, rows: np.ndarray) -> Array | np.ndarray:
    return rows[0] if self.index is None else jnp.asarray(rows)[self.index]


NOT_ROTATED = Rotation()


@jax.named_scope("rope")
def rope(x: Array, positions: Array, rotation: Rotation, platform: str) -> Array:
  """Rotates the pairs (x_i, x_{i + W/2}) of every head by position · frequency_i.

  The first W values of a head are rotated; frequency_i = theta^(−2i/W) unless it is scaled. The
  result is x · cos + turned(x) · sin, where a quarter turn makes (−x_{i + W/2}, x_i) of each pair;
  `yarn` and `longrope` also multiply what is rotated by a number.

  Args:
    x: queries or keys [B, T, H, C].
    positions: the positions of the tokens, integers [B, T].
    rotation: the frequencies, and W, which is even.
    platform: where the program will run; a TPU turns by a matrix product, see `_quarter_turn`.

  Returns:
    The rotated x [B, T, H, C] in its dtype; angles and sums are computed in float32 or wider.

  Source: RoFormer, arXiv 2104.09864, in the half-split layout of Llama checkpoints.
  """
  width = rotation.width(x.shape[-1])
  if width == 0:
    return x
  wide = wide_dtype(x)
  frequencies, gains = rotation.tables(x.shape[-1], wide)
  angles = positions[:, :, None, None].astype(wide)
  angles = angles * aligned(jnp.asarray(frequencies), angles)  # [B, T, 1, C]
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  if gains is not None:
    gains = aligned(jnp.asarray(gains), cos)
    cos, sin = cos * gains, sin * gains
  return _rotated(x, cos, sin, width, platform == "tpu")


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _rotated(x: Array, cos: Array, sin: Array, width: int, by_product: bool) -> Array:
  """Returns x · cos + turned(x) · sin [B, T, H, C]; cos and sin are [B, T, 1, C]."""
  turned = _quarter_turn(x, width, by_product)
  return (x.astype(cos.dtype) * cos + turned.astype(cos.dtype) * sin).astype(x.dtype)


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
  """Returns (−x_{i + W/2}, x_i) for each pair of [..., C], and 0 for channels without rotation.

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
