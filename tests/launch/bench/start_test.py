"""A run has begun once it has recorded a step, whatever else its folder holds before."""

import json
import subprocess
import sys

import pytest

from tests.helpers.fakes import ROOT

PROGRAM = """
import pathlib, sys, time
run = pathlib.Path(next(word for word in sys.argv if "workdir" in word).partition("=")[2])
run.mkdir()
(run / "run.json").write_text("{}")
with open(run / "metrics.jsonl", "w", buffering=1) as file:
  file.write('{"step": 0, "validation/loss": 6.9}\\n')
  time.sleep(0.5)
  file.write('{"step": 1, "train/loss": 6.8}\\n')
  time.sleep(60)
"""


@pytest.fixture
def checkout(tmp_path):
  """A folder whose resjax trains a step after half a second, and then goes on."""
  package = tmp_path / "checkout" / "resjax"
  package.mkdir(parents=True)
  (package / "__init__.py").touch()
  (package / "__main__.py").write_text(PROGRAM)
  return package.parent


# In a process of its own, as the flags of benchmarks have the same names.
MEASURE = """
import json, pathlib, sys
from absl import flags
from launch.bench import start
flags.FLAGS(["start", "--limit=60"])
checkout, run = map(pathlib.Path, sys.argv[1:])
words = ["train", f"--config.workdir={run}"]
print(json.dumps(start._run(checkout, run.parent / "programs", words, run)))
"""


def test_seconds_until_a_step_is_recorded(checkout, tmp_path):
  words = [sys.executable, "-c", MEASURE, checkout, tmp_path / "run"]
  done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
  seconds, of_cores = json.loads(done.stdout)
  assert 0.5 < seconds < 30 and of_cores > 0
