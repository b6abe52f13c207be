"""The watchdog: when it writes stacks, and that it does in processes that really hang."""

import io
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from resjax.base.processes.watchdog import Watchdog
from tests.helpers.runs import REPOSITORY


class Clock:
  def __init__(self):
    self.now = 1000.0

  def __call__(self):
    return self.now


@pytest.fixture
def watched(tmp_path):
  clock, stream = Clock(), io.StringIO()
  return Watchdog(10.0, tmp_path / "stacks.txt", stream=stream, clock=clock), clock, stream


def test_writes_once_per_stall_and_says_when_it_is_over(watched, tmp_path):
  watchdog, clock, stream = watched
  watchdog.beat("device")
  clock.now += 10.0
  watchdog.check()
  assert stream.getvalue() == ""
  clock.now += 2.5
  watchdog.check()
  (line, *stacks) = stream.getvalue().splitlines()
  assert line.startswith("watchdog: nothing ended for 12 s, since 20")
  assert "in phase 'device'" in line and "config.health.watchdog_seconds=10" in line
  # All threads, with this very test among them.
  assert any("test_writes_once_per_stall" in frame for frame in stacks)
  clock.now += 1000.0
  watchdog.check()
  assert len(stream.getvalue().splitlines()) == 1 + len(stacks)
  watchdog.beat("input")
  watchdog.check()
  assert stream.getvalue().endswith("watchdog: going on, 1012 s after the stall began\n")
  clock.now += 11.0
  watchdog.check()
  assert "in phase 'input'" in stream.getvalue()
  assert (tmp_path / "stacks.txt").read_text() == stream.getvalue()


def test_compilation_has_an_allowance_of_its_own(watched):
  watchdog, clock, stream = watched
  for phase in ("init", "compile", "restore"):
    watchdog.beat(phase)
    clock.now += 60.0
    watchdog.check()
  assert stream.getvalue() == ""
  clock.now += 0.1
  watchdog.check()
  assert "in phase 'restore', which may take 60 s" in stream.getvalue()


def test_a_run_that_goes_on_is_left_alone(watched):
  watchdog, clock, stream = watched
  for _ in range(1000):
    watchdog.beat("eval")
    clock.now += 9.9
    watchdog.check()
  assert stream.getvalue() == ""


def test_a_full_disk_does_not_end_the_watch(tmp_path):
  clock, stream = Clock(), io.StringIO()
  watchdog = Watchdog(1.0, tmp_path / "none" / "stacks.txt", stream=stream, clock=clock)
  clock.now += 7.0
  watchdog.check()
  assert "stacks of all threads" in stream.getvalue()
  assert "watchdog: cannot write" in stream.getvalue()


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_leaves_no_thread_behind(tmp_path, capfd, seconds):
  before = set(threading.enumerate())  # those of other tests may end meanwhile
  with Watchdog(seconds, tmp_path / "stacks.txt") as watchdog:
    assert len(set(threading.enumerate()) - before) == (seconds > 0)
    for _ in range(20):
      watchdog.beat("device")
      time.sleep(0.02)
  assert set(threading.enumerate()) <= before
  time.sleep(1.2 * seconds)  # faulthandler's timer is off too
  assert capfd.readouterr().err == ""
  assert not (tmp_path / "stacks.txt").exists()


def hang(tmp_path, how):
  """Output of a process that hangs for four seconds under a watchdog of one second."""
  program = f"""
    import ctypes, pathlib, time
    from resjax.base.processes.watchdog import Watchdog

    def stuck():
      {how}

    with Watchdog(1.0, pathlib.Path("stacks.txt")) as watchdog:
      watchdog.beat("device")
      time.sleep(0.2)
      watchdog.beat("device")
      stuck()
      watchdog.beat("device")
      time.sleep(0.5)
  """
  environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
  result = subprocess.run(
    [sys.executable, "-c", textwrap.dedent(program)],
    cwd=tmp_path,
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert result.returncode == 0, result.stderr
  return result.stderr


def test_a_process_that_really_hangs(tmp_path):
  output = hang(tmp_path, "time.sleep(4)")
  assert output.count("watchdog: nothing ended") == 1
  assert "in stuck" in output
  assert output.count("watchdog: going on") == 1
  assert (tmp_path / "stacks.txt").read_text() in output


def test_a_process_that_hangs_with_the_interpreters_lock(tmp_path):
  output = hang(tmp_path, "ctypes.PyDLL(None).sleep(4)")  # PyDLL: the lock is held in the call
  assert "Timeout (0:00:01" in output
  assert output.index("in stuck") < output.index("watchdog: nothing ended")
