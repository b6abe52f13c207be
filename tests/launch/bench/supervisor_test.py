"""Arms share processes, and one that aborts, hangs or spoils its device costs itself alone."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from launch.bench import supervisor
from launch.bench.supervisor import Arm
from tests.helpers.runs import REPOSITORY, environment

# What the processes of these tests measure: a word for each arm says what becomes of it.
WORKER = """
import os, sys, time
from pathlib import Path
from launch.bench import supervisor

def measure(word):
  if word == "abort":
    os.abort()
  if word == "hang":
    time.sleep(600)
  if word == "raise":
    raise ValueError("too wide")
  if word == "nan":
    return {"error": float("nan"), "pid": os.getpid()}
  if word == "object":
    return {"error": object()}
  time.sleep(float(word[4:] or 0))  # well, or well0.5
  return {"pid": os.getpid()}

spoilt = []

def measured(name):
  spoilt.extend([name] if name.endswith("spoil") else [])
  return measure("raise" if spoilt else name.split()[1])

report, device, *names = sys.argv[1:]
chosen = [supervisor.Arm(name, lambda name=name: measured(name), 60) for name in names]
supervisor.work(chosen, Path(report), {"device": device}, lambda: not spoilt)
"""


def supervise(folder, *names, budget=60.0, deadline=60.0, device="one", program=WORKER):
  report, told = folder / "report.json", []
  arms = [Arm(name, dict, deadline) for name in names]
  command = [sys.executable, "-c", program, str(report), device, *names]
  log, tell = folder / "log", lambda name, record: told.append((name, record["status"]))
  supervisor.supervise(arms, command, report, log, budget, environment(PYTHONPATH=REPOSITORY), tell)
  return strictly(report)["arms"], told


def strictly(report):
  def refuse(word):
    raise ValueError(word)

  return json.loads(report.read_text(), parse_constant=refuse)


def test_arms_share_a_process_until_one_ends_it(tmp_path):
  names = "1 well", "2 abort", "3 well", "4 raise", "5 nan", "6 object", "7 spoil", "8 well"
  found, told = supervise(tmp_path, *names)
  status = {name: record["status"] for name, record in found.items()}
  assert list(status) == list(names) and told == list(status.items())
  assert [name for name in names if status[name] == "ok"] == ["1 well", "3 well", "5 nan", "8 well"]
  assert status["2 abort"] == "killed by SIGABRT: == 2 abort"  # its last words
  assert status["4 raise"] == status["7 spoil"] == "ValueError: too wide"
  assert status["6 object"] == "TypeError: Object of type object is not JSON serializable"
  assert found["5 nan"]["error"] == "NaN"
  first, second, same, third = (found[name]["pid"] for name in names if status[name] == "ok")
  assert second == same and len({first, second, third}) == 3
  assert all(0 <= record["seconds"] < 60 for record in found.values())
  assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "report.json"]
  log = (tmp_path / "log").read_text()
  assert [line[3:] for line in log.splitlines() if line.startswith("== ")] == list(names)


def test_a_deadline_ends_what_hangs_and_the_budget_all(tmp_path):
  begin = time.monotonic()
  found, _ = supervise(tmp_path, "1 hang", "2 well", deadline=1.0)
  assert {name: record["status"] for name, record in found.items()} == {
    "1 hang": "over its deadline of 1 s",
    "2 well": "ok",
  }
  found, _ = supervise(tmp_path, "2 well", "3 hang", "4 well", budget=1.5)
  assert found["3 hang"]["status"] == "no time left" and "4 well" not in found
  assert time.monotonic() - begin < 30


def test_a_later_call_measures_what_is_not_ok(tmp_path):
  before, _ = supervise(tmp_path, "1 well", "2 abort")
  after, told = supervise(tmp_path, "1 well", "2 abort", "3 well")
  assert after["1 well"] == before["1 well"]
  assert [name for name, _ in told] == ["2 abort", "3 well"]
  with pytest.raises(ValueError, match=r"the process of the arms began none.*choose another --out"):
    supervise(tmp_path, "4 well", device="another")


def test_a_process_that_does_not_start_is_an_error(tmp_path):
  with pytest.raises(ValueError, match=r"began none: exit code 1: no GPU; see .*log$"):
    supervise(tmp_path, "1 well", program="raise SystemExit('no GPU')")
  with pytest.raises(ValueError, match=r"began none: exit code 3; see .*log$"):
    supervise(tmp_path, "1 well", program="raise SystemExit(3)")


PARENT = """
import os, sys
from pathlib import Path
from launch.bench import supervisor

report, names = Path(sys.argv[2]), sys.argv[3:]
arms = [supervisor.Arm(name, dict, 60) for name in names]
command = [sys.executable, "-c", sys.argv[1], str(report), "one", *names]
supervisor.supervise(arms, command, report, report.parent / "log", 60, os.environ, print)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="it looks into /proc")
def test_a_killed_parent_leaves_a_whole_report_and_no_process(tmp_path):
  report, names = tmp_path / "report.json", [f"{number} well0.05" for number in range(200)]
  parent = subprocess.Popen(
    [sys.executable, "-c", PARENT, WORKER, str(report), *names], cwd=REPOSITORY,
    env=environment(PYTHONPATH=REPOSITORY), stdout=subprocess.DEVNULL,
  )  # fmt: skip
  done = []
  while len(done) < 20:  # whenever it is read, it is whole
    assert parent.poll() is None
    records = strictly(report)["arms"].values() if report.exists() else []
    done = [record["pid"] for record in records if record["status"] == "ok"]
  parent.send_signal(signal.SIGKILL)
  parent.wait()
  deadline = time.monotonic() + 20
  while os.path.exists(f"/proc/{done[0]}") and time.monotonic() < deadline:
    time.sleep(0.05)
  assert not os.path.exists(f"/proc/{done[0]}")
  assert 20 <= len(strictly(report)["arms"]) < len(names)


def test_an_interrupted_call_says_which_arm_it_stopped(tmp_path):
  def interrupt(name, record):
    while record["status"] == "ok":
      if "2 hang" in strictly(report)["arms"]:
        raise KeyboardInterrupt

  report, names = tmp_path / "report.json", ("1 well", "2 hang")
  command = [sys.executable, "-c", WORKER, str(report), "one", *names]
  with pytest.raises(KeyboardInterrupt):
    supervisor.supervise(
      [Arm(name, dict, 60) for name in names], command, report, tmp_path / "log", 60.0,
      environment(PYTHONPATH=REPOSITORY), interrupt,
    )  # fmt: skip
  assert strictly(report)["arms"]["1 well"]["status"] == "ok"
  assert strictly(report)["arms"]["2 hang"]["status"] == "stopped"
