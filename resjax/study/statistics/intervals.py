"""Student's t of means."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


@dataclasses.dataclass(frozen=True)
class Student:
  """Means of n independent values each, with what Student's t says of the true ones.

  Attributes:
    mean: [...] the means x̄.
    deviation: [...] the standard deviations s of the values, each from its own values alone.
    error: [...] the standard errors s / √n.
    freedom: the degrees of freedom ν = n − 1.
  """

  mean: np.ndarray
  deviation: np.ndarray
  error: np.ndarray
  freedom: int

  def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Returns the intervals x̄ ± t(1 − (1 − level)/2, ν) s / √n.

    Args:
      level: the share of such intervals that hold the true mean.
    """
    half = t_quantile(self.freedom, level) * self.error
    return self.mean - half, self.mean + half

  def p(self) -> np.ndarray:
    """Returns the two-sided p values of means of 0."""
    return 2 * self._tail(np.abs(self.mean))

  def equality_p(self, margin: ArrayLike) -> np.ndarray:
    """Returns the p values of means as far from 0 as a margin, or farther.

    Each is the larger one of two one-sided tests.
    """
    return self._tail(margin - np.abs(self.mean))

  def _tail(self, distance: np.ndarray) -> np.ndarray:
    """Returns P(T > distance / error); values without noise are that far for sure, or not."""
    with np.errstate(divide="ignore", invalid="ignore"):
      tail = stats.t.sf(distance / self.error, self.freedom)
    return np.where((self.error == 0) & (distance == 0), 0.5, tail)


def student(values: ArrayLike) -> Student:
  """Returns the means of values and their errors.

  Args:
    values: [..., n] values, n above 1.

  Source:
    Student 1908, The probable error of a mean.
  """
  x = np.asarray(values, float)
  n = x.shape[-1]
  deviation = x.std(axis=-1, ddof=1)
  return Student(x.mean(axis=-1), deviation, deviation / n**0.5, n - 1)


def decimals(low: float, high: float, least: int = 0) -> int:
  """Returns how many decimals show half the width of an interval with two digits.

  Args:
    low: the lower end.
    high: the upper end.
    least: the number that is given at least, and for an interval without width.
  """
  half = (high - low) / 2
  return max(least, 1 - math.floor(math.log10(half))) if half > 0 else least


def t_quantile(freedom: int, level: float = 0.95) -> float:
  """Returns t(1 − (1 − level)/2, ν), half the width of an interval in standard errors.

  Args:
    freedom: the degrees of freedom ν.
    level: the share of intervals that hold the true value.
  """
  return float(stats.t.ppf(0.5 + level / 2, freedom))


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
  """Returns the interval x̄ ± t s / √n of the mean of independent values; None for one value.

  Values that are shares of clusters (seeds, documents) make it the interval of a proportion that
  takes each cluster for one observation.

  Args:
    values: [n] values.
    level: the share of such intervals that hold the true mean.
  """
  if len(values) < 2:
    return None
  low, high = student(values).interval(level)
  return float(low), float(high)
