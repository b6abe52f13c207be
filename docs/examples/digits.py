"""Handwritten digits as tokens: 1797 images that come with scikit-learn, without a download."""

from collections.abc import Iterator

import numpy as np
from sklearn import datasets

PATCH = 2  # Pixels on a side.
NUM_TOKENS, NUM_CLASSES = (8 // PATCH) ** 2, 10
Examples = tuple[np.ndarray, np.ndarray]


def load(num_test: int = 360) -> tuple[Examples, Examples]:
  """Returns training and test examples: patches [N, T=16, 4] in -1..1, and labels [N]."""
  digits = datasets.load_digits()
  rows = digits.images.reshape(-1, 8 // PATCH, PATCH, 8 // PATCH, PATCH).swapaxes(2, 3)
  patches = (rows.reshape(-1, NUM_TOKENS, PATCH * PATCH) / 8 - 1).astype(np.float32)
  order = np.random.default_rng(0).permutation(len(patches))
  test, train = order[:num_test], order[num_test:]
  return (patches[train], digits.target[train]), (patches[test], digits.target[test])


def batches(examples: Examples, steps: int, batch_size: int = 64) -> Iterator[Examples]:
  """Yields `steps` random batches."""
  rng = np.random.default_rng(0)
  for _ in range(steps):
    rows = rng.choice(len(examples[0]), batch_size, replace=False)
    yield examples[0][rows], examples[1][rows]
