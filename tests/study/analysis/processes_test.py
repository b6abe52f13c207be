"""Several processes together measure what one process measures alone."""

import sys

import numpy as np
import pytest

from resjax.base.sharding import Layout
from resjax.study.analysis.alignment import Alignment
from tests.helpers.alignment_process import ROWS, measured
from tests.helpers.runs import ends, start_together


@pytest.mark.slow
def test_two_processes_find_what_one_finds():
  found = ends(start_together(2, [sys.executable, "-m", "tests.helpers.alignment_process"]))
  one = measured(Layout(), np.arange(ROWS))
  assert one.num_rows == 2 * ROWS - 1
  for code, output in found:
    assert code == 0, output
    line = next(line for line in output.splitlines() if line.startswith("json|"))
    check(Alignment.from_json(line.removeprefix("json|")), one)


def check(found, one):
  assert (found.num_rows, found.positions) == (one.num_rows, one.positions)
  for name, group in one.readings["closed"].items():
    other = found.readings["closed"][name]
    assert (other.num_tokens, other.num_kl_tokens) == (group.num_tokens, group.num_kl_tokens)
    assert other.shifts == group.shifts
    for metric, values in group.metrics.items():
      np.testing.assert_allclose(other.metrics[metric], values, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(found.depth_weights.weights, one.depth_weights.weights, atol=1e-6)
