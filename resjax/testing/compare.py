"""Distances between trees of arrays."""

from typing import Any

import jax
import numpy as np

from resjax.base import PyTree

ALIKE = 1e-5  # relative, in float32, for what a norm makes equal up to its eps


def norm(x: object) -> float:
  """Returns the L2 norm of an array, computed in float64."""
  return float(np.linalg.norm(np.asarray(x, np.float64)))


def relative_errors(got: PyTree, want: PyTree, floor: float = 1e-2) -> dict[str, float]:
  """Returns |got - want| / |want| in L2 for every leaf, by its path.

  A leaf that is much smaller than the whole tree has rounding errors of the larger ones, so its
  scale is at least `floor` times its share of the tree's norm.
  """
  wants = jax.tree.leaves_with_path(want)
  total = np.sqrt(sum(norm(leaf) ** 2 for _, leaf in wants))
  size = sum(np.size(leaf) for _, leaf in wants)
  errors = {}
  for (path, w), g in zip(wants, jax.tree.leaves(got), strict=True):
    where = jax.tree_util.keystr(path)
    assert np.shape(g) == np.shape(w), f"{where} has shape {np.shape(g)}, not {np.shape(w)}"
    scale = max(norm(w), floor * total * np.sqrt(np.size(w) / size))
    difference = np.asarray(g, np.float64) - np.asarray(w, np.float64)
    errors[where] = norm(difference) / scale if scale else norm(difference)
  return errors


def assert_close(got: PyTree, want: PyTree, tolerance: float, floor: float = 1e-2) -> None:
  """Asserts that every leaf is within a relative L2 error; NaN never is."""
  structures: list[Any] = [jax.tree.structure(got), jax.tree.structure(want)]
  assert structures[0] == structures[1], f"got {structures[0]}, not {structures[1]}"
  errors = relative_errors(got, want, floor)
  bad = {path: error for path, error in errors.items() if not error <= tolerance}
  assert not bad, f"relative L2 error above {tolerance}: {bad}"
