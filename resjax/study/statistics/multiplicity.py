"""p values of several tests."""

import numpy as np
from numpy.typing import ArrayLike


def holm(p_values: ArrayLike) -> np.ndarray:
  """Returns p values adjusted such that any false finding among them is as rare as each says.

  p sorted upwards is multiplied by K, K−1, ..., 1; the adjusted value is the running maximum, at
  most 1. The tests may depend on each other in any way.

  Args:
    p_values: [..., K] p values, in any order.

  Returns:
    [..., K] the adjusted values in the same order.

  Source:
    Holm 1979, A simple sequentially rejective multiple test procedure.
  """
  p = np.asarray(p_values, float)
  order = np.argsort(p, axis=-1, kind="stable")
  steps = np.arange(p.shape[-1], 0, -1)
  raised = np.maximum.accumulate(np.take_along_axis(p, order, -1) * steps, axis=-1)
  adjusted = np.empty_like(p)
  np.put_along_axis(adjusted, order, np.minimum(raised, 1), -1)
  return adjusted
