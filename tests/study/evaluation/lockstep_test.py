"""Several processes score as one, led by the first of them; an error of it ends all."""

import importlib.util
import json
import sys

import numpy as np
import pytest

from resjax.study.evaluation.lockstep import Lockstep
from tests.helpers import tasks, xla
from tests.helpers.runs import ends, start_together


def found_by(count, what):
  """What each process printed, and its exit code; all have two devices together."""
  arguments = [sys.executable, "-m", "tests.helpers.scoring_process", str(what)]
  finished = ends(start_together(count, arguments, XLA_FLAGS=xla.devices(2 // count)))
  lines = [[line for line in output.splitlines() if "found|" in line] for _, output in finished]
  return finished, [json.loads(line[0].split("found|")[1]) if line else None for line in lines]


@pytest.mark.release
def test_two_processes_score_and_continue_as_one():
  _, [(scores, texts)] = found_by(1, "rows")
  finished, (first, second) = found_by(2, "rows")
  assert [code for code, _ in finished] == [0, 0], finished
  assert second is None and first[1] == texts
  for own, alone in zip(first[0], scores, strict=True):
    np.testing.assert_allclose(own, alone, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_an_error_of_the_first_ends_both():
  finished, _ = found_by(2, "error")
  assert [code for code, _ in finished] == [1, 1], finished
  assert "error: the second task fails" in finished[0][1]
  assert "which says: error: the second task fails" in finished[1][1]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="needs the extra eval")
def test_two_processes_run_tasks_as_one(tmp_path):
  folder = tasks.write(tmp_path / "own")
  _, [alone] = found_by(1, folder)
  finished, (first, second) = found_by(2, folder)
  assert [code for code, _ in finished] == [0, 0], finished
  assert second is None and first.keys() == alone.keys()
  for name, values in alone.items():
    for own, value in zip(first[name], values, strict=True):
      assert own == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value)


def test_one_process_calls_at_once():
  lockstep = Lockstep({"add": lambda a, b: a + b})
  assert lockstep.lead(lambda: lockstep.call("add", 1, 2)) == 3
