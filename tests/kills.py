"""A run that is killed at random moments, wherever it is, and started again ends in the same bits.

  python -m tests.kills --kills=60

Each of several runs, with data of its own, is killed once in each phase: while it builds its data,
compiles, trains, saves, evaluates and reports. Then it is left to end, and every array and every
record is compared with those of a run that was never killed.
"""

import argparse
import collections
import os
import pathlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable

import numpy as np

from resjax.base.records.metrics_log import read_metrics
from tests.helpers.runs import STEPS, finish, last_step, small_command, start, write_text
from tests.train.resume_test import hashes, without_time

# Evaluations of many batches, so that a kill meets one.
_SETTINGS = {"train__eval_rows": 0, "train__microbatches": 4, "checkpoint__keep_last": 100}


def _evaluates(workdir: pathlib.Path) -> bool:
  path = workdir / "metrics.jsonl"
  records = read_metrics(path) if path.exists() else []
  return bool(records) and records[-1]["step"] % 5 == 0 and "train/loss" in records[-1]


def _saves(workdir: pathlib.Path) -> bool:
  return any("tmp" in path.name for path in (workdir / "checkpoints").glob("*"))


# When each phase has begun, and about how many seconds of it are left then.
_PHASES: dict[str, tuple[Callable[[pathlib.Path], bool], float]] = {
  "data": (lambda workdir: (workdir / ".lock").exists(), 0.5),
  "compile": (lambda workdir: (workdir / "run.json").exists(), 1.5),
  "train": (lambda workdir: last_step(workdir) >= 3, 0.1),
  "save": (_saves, 0.02),
  "evaluation": (_evaluates, 0.1),
  "report": (lambda workdir: (workdir / "checkpoints" / str(STEPS)).exists(), 0.3),
}


def kill(
  arguments: list[str], workdir: pathlib.Path, phase: str, random: np.random.Generator
) -> bool:
  """Starts a run and kills it in a phase; returns False if it ended before."""
  begun, seconds = _PHASES[phase]
  process = start(arguments)
  deadline = time.monotonic() + 240
  while process.poll() is None and not begun(workdir):
    assert time.monotonic() < deadline, f"{phase} never began"
    time.sleep(0.002)
  try:
    process.wait(random.uniform(0, seconds))
  except subprocess.TimeoutExpired:
    process.send_signal(signal.SIGKILL)
  output, _ = process.communicate()
  assert process.returncode in (0, -signal.SIGKILL), output
  return process.returncode != 0


def kills(root: pathlib.Path, count: int, say=print) -> collections.Counter[str]:
  """Kills runs, compares each with a run that went through, and returns the kills by phase.

  Args:
    root: an empty folder.
    count: the number of kills at least.
    say: is called with a line about each run.
  """
  write_text(root)
  finish(small_command(root, root / "straight", **_SETTINGS))
  wanted = hashes(root / "straight"), without_time(root / "straight")
  random, killed = np.random.default_rng(0), collections.Counter[str]()
  while (number := sum(killed.values())) < count:
    workdir = root / f"killed-{number}"
    arguments = small_command(root, workdir, **_SETTINGS, data__root=root / f"data-{number}")
    for phase in _PHASES:
      killed[phase] += kill(arguments, workdir, phase, random)
    finish(arguments)
    assert hashes(workdir) == wanted[0], workdir
    assert without_time(workdir) == wanted[1], workdir
    say(f"{sum(killed.values())} kills, all arrays and records alike: {dict(killed)}")
  return killed


def main() -> None:
  """Runs the kills; an assertion fails where a run differs."""
  parser = argparse.ArgumentParser(description="Kills runs at random moments.")
  parser.add_argument("--kills", type=int, default=60)
  with tempfile.TemporaryDirectory() as folder:
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{folder}/programs")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    kills(pathlib.Path(folder), parser.parse_args().kills)


if __name__ == "__main__":
  main()
