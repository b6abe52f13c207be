"""A run has begun once it has recorded a step, whatever else its folder holds before."""

import types

import pytest

from launch.bench import start

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


def test_seconds_until_a_step_is_recorded(checkout, tmp_path, monkeypatch):
  monkeypatch.setattr(start, "_LIMIT", types.SimpleNamespace(value=60))
  run = tmp_path / "run"
  words = ["train", f"--config.workdir={run}"]
  seconds, of_cores = start._run(checkout, tmp_path / "programs", words, run)
  assert 0.5 < seconds < 30 and of_cores > 0
