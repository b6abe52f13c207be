"""Rotary position embedding."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from resjax.base import Array, aligned, wide_dtype

SCALINGS = ("none", "linear", "llama3", "yarn", "longrope")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """How wavelengths are stretched for rows that are longer than the rows of pretraining.

  With s = factor, n = original_max_positions, and p_i = theta^(2i/W), the plain frequency is 1/p_i.

  `linear` stretches all wavelengths by s (position interpolation, arXiv 2306.15595).
  `llama3` (Llama 3.1, arXiv 2407.21783) stretches those longer than n / low_freq_factor by s,
  leaves those shorter than n / high_freq_factor as they are, and interpolates between both
  frequencies linearly in n / wavelength for the others.
  `yarn` (arXiv 2309.00071) has the frequencies ρ_i / (s p_i) + (1 − ρ_i) / p_i with
  ρ_i = clip((i − low) / (high − low), 0, 1), where low and high are the i that make beta_fast and
  beta_slow turns in n tokens; and it multiplies what is rotated by A = 1 + 0.1 ln s.
  `longrope` (arXiv 2402.13753) has the frequencies 1 / (f_i p_i), where f are the long_factors in
  documents of more than n tokens, and the short_factors in others; and A = sqrt(1 + ln s / ln n).
  Of s ≤ 1, A is 1. How long a document is, its tokens tell: neither padding nor the room in a cache
  nor other documents of a packed row have a part in it.

  Attributes:
    kind: one of `SCALINGS`.
    factor: s; of `longrope` by how much longer than n the longest rows are, which decides A alone.
    low_freq_factor: see `llama3`.
    high_freq_factor: see `llama3`.
    original_max_positions: n, the length of the rows of pretraining in tokens; not for `linear`.
    beta_fast: see `yarn`.
    beta_slow: see `yarn`.
    truncate: whether `yarn` rounds low down and high up.
    attention_factor: A of `yarn` and `longrope`; 0: by the formula.
    short_factors: see `longrope`, W / 2 numbers.
    long_factors: see `longrope`, W / 2 numbers.
  """

  kind: str = "none"
  factor: float = 1.0
  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0
  original_max_positions: int = 0
  # Records of earlier runs do not have these settings.
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  truncate: bool = True
  attention_factor: float = 0.0
  short_factors: tuple[float, ...] = ()
  long_factors: tuple[float, ...] = ()

  def gain(self) -> float:
    """Returns A, the factor of rotated queries and keys."""
    if self.kind not in ("yarn", "longrope"):
      return 1.0
    if self.attention_factor or self.factor <= 1:
      return self.attention_factor or 1.0
    if self.kind == "yarn":
      return 0.1 * math.log(self.factor) + 1.0
    return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_positions))


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

    In float32 `llama3`, `yarn` and `longrope` are computed in it too, as transformers does.

    Args:
      head_dim: the width of a head C.
      is_long: whether `longrope` has its long factors.
      dtype: float32 or wider.
    """
    width, scaling = self.width(head_dim), self.scaling
    if scaling.kind in ("none", "linear"):
      plain = self.theta ** -(np.arange(0, width, 2) / width)
      return (plain / scaling.factor if scaling.kind == "linear" else plain).astype(dtype)
    periods = np.dtype(dtype).type(self.theta) ** (np.arange(0, width, 2, dtype=dtype) / width)
    if scaling.kind == "llama3":
      return _llama3(1 / periods, scaling)
    if scaling.kind == "yarn":
      return _yarn(periods, self.theta, scaling)
    factors = scaling.long_factors if is_long else scaling.short_factors
    return 1 / (np.asarray(factors, dtype) * periods)


def _llama3(plain: np.ndarray, scaling: RopeScaling) -> np.ndarray:
  """Returns the frequencies of `llama3`, given plain ones [W / 2], in their dtype."""
  wavelengths, n = 2 * math.pi / plain, scaling.original_max_positions
  low, high = scaling.low_freq_factor, scaling.high_freq_factor
  kept = (n / wavelengths - low) / (high - low)
  between = (1 - kept) * plain / scaling.factor + kept * plain
  is_long, is_short = wavelengths > n / low, wavelengths < n / high
  return np.where(is_long, plain / scaling.factor, np.where(is_short, plain, between))


def _yarn(periods: np.ndarray, theta: float, scaling: RopeScaling) -> np.ndarray:
  """Returns the frequencies of `yarn`, given the p_i [W / 2] of a base theta, in their dtype."""
  width = 2 * len(periods)

  def index(turns: float) -> float:
    longest = scaling.original_max_positions / (turns * 2 * math.pi)
    return width * math.log(longest) / (2 * math.log(theta))

  low, high = index(scaling.beta_fast), index(scaling.beta_slow)
  if scaling.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, width - 1)
  high += 0.001 if low == high else 0
  ramp = np.clip((np.arange(width // 2, dtype=periods.dtype) - low) / (high - low), 0, 1)
  kept = 1 - ramp
  return 1 / (scaling.factor * periods) * (1 - kept) + 1 / periods * kept


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
      gains[row, :width] = rope.scaling.gain() if rope else 1
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
