"""Distances between trees of arrays."""

import jax
import numpy as np


def norm(x):
  return float(np.linalg.norm(np.asarray(x, np.float64)))


def relative_errors(got, want, floor=1e-2):
  """Path -> |got - want| / |want| in L2, per leaf.

  A leaf that is much smaller than the whole tree has rounding errors of the larger ones, so its
  scale is at least `floor` times its share of the tree's norm.
  """
  wants = jax.tree.leaves_with_path(want)
  total = np.sqrt(sum(norm(leaf) ** 2 for _, leaf in wants))
  size = sum(np.size(leaf) for _, leaf in wants)
  errors = {}
  for (path, w), g in zip(wants, jax.tree.leaves(got), strict=True):
    assert np.shape(g) == np.shape(w), path
    scale = max(norm(w), floor * total * np.sqrt(np.size(w) / size))
    difference = np.asarray(g, np.float64) - np.asarray(w, np.float64)
    errors[jax.tree_util.keystr(path)] = norm(difference) / scale if scale else norm(difference)
  return errors


def assert_close(got, want, tolerance, floor=1e-2):
  """Every leaf within a relative L2 error, NaN never."""
  assert jax.tree.structure(got) == jax.tree.structure(want)
  errors = relative_errors(got, want, floor)
  bad = {path: error for path, error in errors.items() if not error <= tolerance}
  assert not bad, f"relative L2 error above {tolerance}: {bad}"
