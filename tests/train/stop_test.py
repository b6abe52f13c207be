"""SIGTERM, wherever it arrives: the state is saved, exit code 0, and nothing is lost."""

import os
import pathlib
import re
import signal
import subprocess

import pytest

from resjax.base.records.metrics_log import read_metrics
from tests.helpers.runs import finish, last_step, small_command, start, wait_for, write_text
from tests.train.resume_test import hashes, without_time

# Evaluations of several hundred batches, so that a signal meets one.
SETTINGS = {
  "train__steps": 60,
  "train__eval_every": 5,
  "train__eval_rows": 0,
  "train__microbatches": 8,
  "checkpoint__every": 20,
  "checkpoint__keep_last": 100,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
  return write_text(tmp_path_factory.mktemp("stop"))


def a_run(root, name) -> list[str]:
  return small_command(root, root / name, **SETTINGS)


def stopped(process: subprocess.Popen, workdir: pathlib.Path) -> int:
  """Sends SIGTERM; returns the step that was saved."""
  process.send_signal(signal.SIGTERM)
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 0 and "Traceback" not in output, output
  step = int(re.search(r"stopped after step (\d+), which is saved", output)[1])
  assert (workdir / "checkpoints" / str(step)).is_dir()
  return step


def stop_in_compilation(root, name) -> int:
  process = start(a_run(root, name))
  while "activations in" not in (line := process.stdout.readline()):  # the last one before it
    assert line, process.wait()
  return stopped(process, root / name)


def stop_in_training(root, name) -> int:
  process, before = start(a_run(root, name)), last_step(root / name)
  wait_for(process, lambda: last_step(root / name) > before + 1)
  return stopped(process, root / name)


def stop_in_evaluation(root, name) -> int:
  process, before = start(a_run(root, name)), last_step(root / name)

  def just_begun():
    path = root / name / "metrics.jsonl"
    records = read_metrics(path) if path.exists() else []
    last = records[-1] if records else {"step": -1}
    return last["step"] > max(before, 0) and last["step"] % 5 == 0 and "train/loss" in last

  wait_for(process, just_begun)
  return stopped(process, root / name)


def evaluated(workdir: pathlib.Path) -> set[int]:
  records = read_metrics(workdir / "metrics.jsonl")
  return {record["step"] for record in records if "validation/loss" in record}


@pytest.mark.slow
def test_stops_in_compilation_and_evaluation(root):
  assert stop_in_compilation(root, "short") == 0
  assert 0 not in evaluated(root / "short")
  assert stop_in_evaluation(root, "short") == 5
  assert evaluated(root / "short") == {0}  # the one owed; that of step 5 was thrown away


@pytest.mark.release
def test_sigterm_20_of_20_times(root, monkeypatch):
  name = "often"
  steps = [stop_in_compilation(root, name)]
  monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(root / "cache"))
  monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
  cut = 0
  for stop in (stop_in_training, stop_in_evaluation) * 7:
    steps.append(stop(root, name))
    cut += stop is stop_in_evaluation and steps[-1] not in evaluated(root / name)
  assert cut >= 5  # a fast evaluation may end before the signal comes
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
  steps += [stop_in_compilation(root, name) for _ in range(5)]
  assert len(steps) == 20 and steps == sorted(steps) and steps[0] == 0
  finish(a_run(root, name))
  finish(a_run(root, "straight"))
  assert hashes(root / name, 60) == hashes(root / "straight", 60)
  assert without_time(root / name) == without_time(root / "straight")


@pytest.mark.slow
def test_stop_while_the_data_are_built(root):
  process = start([*a_run(root, "early"), f"--config.data.root={root / 'other'}"])
  wait_for(process, (root / "early" / ".lock").exists)
  process.send_signal(signal.SIGTERM)
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 0, output
  assert "nothing had to be saved" in output or "stopped after step 0" in output
  assert os.listdir(root / "early" / "checkpoints") in ([], ["0"])
