"""Arms are processes: what aborts, hangs or leaves processes behind costs no more than itself."""

import os
import sys
import time

import pytest

from launch.bench import arms


def run(tmp_path, program, deadline=60.0):
  log = tmp_path / "logs" / "log"
  return arms.run([sys.executable, "-c", program], log, deadline), log


def test_what_ends_well(tmp_path):
  status, log = run(tmp_path, "print('first'); print('last')")
  assert status == "ok" and log.read_text() == "first\nlast\n"


@pytest.mark.parametrize(
  ("program", "status"),
  [
    ("import os; print('at case 7', flush=True); os.abort()", "killed by SIGABRT: at case 7"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
    ("raise ValueError('too wide')", "exit code 1: ValueError: too wide"),
    ("raise SystemExit(3)", "exit code 3"),
    (  # and not the report that Python makes of it
      "import faulthandler, os; faulthandler.enable(); print('at 8', flush=True); os.abort()",
      "killed by SIGABRT: at 8",
    ),
  ],
)
def test_how_an_arm_died(tmp_path, program, status):
  found, _ = run(tmp_path, program)
  assert found == status


def alive(number):
  """Whether a process runs: one that has ended and that nobody waits for does not."""
  try:
    with open(f"/proc/{number}/stat") as file:
      return file.read().rsplit(")", 1)[1].split()[0] != "Z"
  except FileNotFoundError:
    return False


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="it looks into /proc")
def test_a_deadline_ends_an_arm_and_all_that_it_has_started(tmp_path):
  inner = "import time; time.sleep(600)"
  program = (
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    f"child = subprocess.Popen([sys.executable, '-c', {inner!r}])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(600)\n"
  )
  begin = time.monotonic()
  status, log = run(tmp_path, program, deadline=3.0)
  assert status == "over its deadline of 3 s" and time.monotonic() - begin < 30
  child = int(log.read_text())
  deadline = time.monotonic() + 10
  while alive(child) and time.monotonic() < deadline:
    time.sleep(0.05)
  assert not alive(child)
