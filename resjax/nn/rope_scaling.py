"""How the wavelengths of a rotation are stretched for long rows."""

import dataclasses
import math

import jax
import numpy as np

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
    low_freq_factor, high_freq_factor: see `llama3`.
    original_max_positions: n, the length of the rows of pretraining in tokens; not for `linear`.
    beta_fast, beta_slow: see `yarn`.
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

  def frequencies(
    self, theta: float, width: int, is_long: bool, dtype: jax.typing.DTypeLike
  ) -> np.ndarray:
    """Returns the angles per position of all pairs, in radians, [W / 2], unless `kind` is none.

    In float32 `llama3`, `yarn` and `longrope` are computed in it too, as transformers does.

    Args:
      theta: the base of the wavelengths.
      width: W.
      is_long: whether `longrope` has its long factors.
      dtype: float32 or wider.
    """
    if self.kind == "linear":
      return (theta ** -(np.arange(0, width, 2) / width) / self.factor).astype(dtype)
    periods = np.dtype(dtype).type(theta) ** (np.arange(0, width, 2, dtype=dtype) / width)
    if self.kind == "llama3":
      return _llama3(1 / periods, self)
    if self.kind == "yarn":
      return _yarn(periods, theta, self)
    factors = self.long_factors if is_long else self.short_factors
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
