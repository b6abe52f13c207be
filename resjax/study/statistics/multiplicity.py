"""p values of several tests."""

from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float]) -> list[float]:
  """Returns p values adjusted such that any false finding among them is as rare as each says.

  p sorted upwards is multiplied by K, K−1, ..., 1; the adjusted value is the running maximum, at
  most 1.

  Args:
    p_values: [K] p values, in any order.

  Returns:
    The adjusted values in the same order.

  Source:
    Holm 1979, A simple sequentially rejective multiple test procedure.
  """
  p = np.asarray(p_values, float)
  order = np.argsort(p, kind="stable")
  adjusted = np.empty(len(p))
  steps = np.arange(len(p), 0, -1)
  adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * steps), 1)
  return adjusted.tolist()
