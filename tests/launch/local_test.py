"""Local processes: their environment, output, signals and exit codes."""

import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.fakes import ROOT

# Says who it is; told to stop, it saves for a while.
PROGRAM = """
import os, signal, sys, time
me = int(os.environ["JAX_PROCESS_ID"])
def stop(number, _):
  time.sleep(0.2)
  print(f"saved after {number}")
  sys.exit(0 if number == signal.SIGTERM else 130)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
print("up", os.environ["JAX_COORDINATOR_ADDRESS"], os.environ["JAX_NUM_PROCESSES"])
exec(sys.argv[1])
"""
# In short naps: a signal that arrives just before a sleep begins is handled only when it ends.
WAIT = "while True: time.sleep(0.05)"


def start(program, *flags, num=3):
  arguments = ["-m", "launch.local", f"--num_processes={num}", *flags, "--", sys.executable, "-c"]
  return subprocess.Popen(
    [sys.executable, *arguments, PROGRAM, program],
    cwd=ROOT,
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
  )


def finish(process):
  output, _ = process.communicate(timeout=60)
  return process.returncode, output


def wait_until(process, word):
  """Reads on until all three have said it."""
  seen = 0
  while seen < 3:
    seen += word in process.stdout.readline()


def test_all_succeed_and_find_each_other():
  code, output = finish(start("print('line one\\nline two')"))
  assert code == 0
  lines = sorted(output.splitlines())
  for number in range(3):
    mine = [line for line in lines if line.startswith(f"[{number}] ")]
    assert mine[:2] == [f"[{number}] line one", f"[{number}] line two"]
    assert re.fullmatch(rf"\[{number}\] up localhost:\d+ 3", mine[2])
  assert len({line.split()[2] for line in lines if " up " in line}) == 1


def test_one_fails_and_the_others_are_told_to_stop():
  began = time.monotonic()
  code, output = finish(start(f"time.sleep(1)\nif me == 1: sys.exit(7)\n{WAIT}"))
  assert code == 7 and time.monotonic() - began < 30
  assert "process 1 failed with exit code 7" in output
  assert {"[0] saved after 15", "[2] saved after 15"} <= set(output.splitlines())


def test_one_is_killed():
  code, output = finish(start("if me == 2: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)"))
  assert code == 128 + signal.SIGKILL and "process 2 failed with exit code 137" in output


def test_those_that_do_not_stop_are_killed():
  program = (
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif me: time.sleep(60)\nelse: sys.exit(3)"
  )
  began = time.monotonic()
  code, _ = finish(start(program, "--grace_seconds=1"))
  assert code == 3 and time.monotonic() - began < 30


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_reach_all_once(number, code):
  process = start(WAIT)
  wait_until(process, " up ")
  process.send_signal(number)
  returned, output = finish(process)
  assert returned == code
  assert sorted(output.splitlines())[:3] == [f"[{one}] saved after {number:d}" for one in range(3)]


def test_one_that_has_saved_early_does_not_end_the_others():
  slow = "def stop(*_):\n  time.sleep(1.5 if me else 0)\n  print('saved')\n  sys.exit(130)"
  program = f"{slow}\nsignal.signal(signal.SIGINT, stop)\nprint('ready')\n{WAIT}"
  process = start(program, "--grace_seconds=0")
  wait_until(process, "ready")
  process.send_signal(signal.SIGINT)
  code, output = finish(process)
  assert code == 130 and output.count("saved") == 3


def test_a_second_ctrl_c_ends_all():
  process = start("signal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf')\ntime.sleep(60)")
  wait_until(process, "deaf")
  process.send_signal(signal.SIGINT)
  time.sleep(0.2)
  assert process.poll() is None
  process.send_signal(signal.SIGINT)
  assert finish(process)[0] == 137


def test_what_a_process_leaves_behind_is_ended():
  program = "import subprocess\nprint('child', subprocess.Popen(['sleep', '60']).pid)"
  began = time.monotonic()
  code, output = finish(start(program, num=1))
  assert code == 0 and time.monotonic() - began < 30
  child = re.search(r"child (\d+)", output)[1]
  command_line = pathlib.Path(f"/proc/{child}/cmdline")
  while command_line.exists() and command_line.read_bytes():  # empty: ended, not yet waited for
    assert time.monotonic() - began < 30
    time.sleep(0.05)


def test_jax_processes_see_the_devices_of_all():
  program = (
    "import jax, os; jax.distributed.initialize(num_processes=int(os.environ['JAX_NUM_PROCESSES']),"
    " process_id=int(os.environ['JAX_PROCESS_ID'])); print(jax.process_index(), jax.device_count())"
  )
  code, output = finish(start(program, "--cpu_devices=3", num=2))
  assert code == 0, output
  assert {"[0] 0 6", "[1] 1 6"} <= set(output.splitlines())


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    ([], "say what to run"),
    (["--", "nowhere"], "nowhere: No such file"),
    (["stray"], "unexpected argument 'stray'"),
    (["--num_processes=0", "--", "true"], "num_processes"),
  ],
)
@pytest.mark.slow
def test_mistakes(arguments, words):
  command = [sys.executable, "-m", "launch.local", *arguments]
  done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=60)
  assert done.returncode == 1
  assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
  assert words in done.stderr
