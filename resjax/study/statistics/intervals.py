"""Student's intervals of means."""

from collections.abc import Sequence

import numpy as np
from scipy import stats


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
  mean = float(np.mean(values))
  error = float(np.std(values, ddof=1)) / len(values) ** 0.5
  half = t_quantile(len(values) - 1, level) * error
  return mean - half, mean + half
