"""Many kills and a long run, in short; the commands behind them do more."""

import pathlib
import subprocess
import sys

import pytest

from tests import kills

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.release
def test_kills_in_every_phase(tmp_path):
  killed = kills.kills(tmp_path, count=10)
  assert set(killed) == {"data", "compile", "train", "save", "evaluation", "report"}


@pytest.mark.release
def test_nothing_grows():
  # In a process of its own, whose heaps are few from the start.
  command = [sys.executable, "-m", "tests.soak", "--steps=1600", "--saves=160"]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  assert "nothing is left" in done.stdout
