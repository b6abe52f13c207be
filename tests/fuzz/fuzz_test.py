"""The fuzz in the suite: a fixed sample of it, all of the known attacks, and its own rules."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.fuzz import cases, kinds, mutations
from tests.fuzz.__main__ import markdown, passes
from tests.fuzz.cases import ACCEPTED, CLEAN, Case, Place, must_refuse
from tests.fuzz.forks import ROOT, Done
from tests.fuzz.runner import Judged

GIB = 1 << 30


def fuzz(*arguments: str, timeout: float) -> subprocess.CompletedProcess:
  command = [sys.executable, "-m", "tests.fuzz", *arguments]
  return subprocess.run(
    command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
  )


@pytest.mark.slow
def test_a_sample():
  # What a stranger may put into files is in tests/readers_test.py, too, without a process for each.
  drawn = [f"--kind={kind}" for kind in kinds.ALL if kind != "stranger"]
  done = fuzz("--cases=10", *drawn, timeout=900)
  assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.release
def test_a_larger_sample_and_all_known_attacks():
  done = fuzz("--cases=250", "--seed=1", timeout=1800)
  assert done.returncode == 0, done.stdout + done.stderr


def case(**changes) -> Case:
  usual = {"kind": "k", "command": "m", "arguments": (), "what": "w", "names": ("a.json",)}
  return Case(**usual | changes)


def judge(err: str, code: int = 1, out: str = "", changed=(), peak: int = 0, stopped="", **changes):
  place = Place(Path("/nowhere"), Path("/nowhere"), {})
  done = Done(code, out.encode(), err.encode(), 1.0, peak, stopped)
  return cases.judge(case(**changes), place, done, list(changed), GIB).word


@pytest.mark.parametrize(
  "word, given",
  [
    (CLEAN, {"err": "error: a.json is cut\n"}),
    (CLEAN, {"err": "warning: pipe passed over\nerror: A.JSON is cut\n"}),
    (CLEAN, {"err": "error: anything\n", "names": ()}),
    (ACCEPTED, {"err": "", "code": 0}),
    ("unnamed", {"err": "error: Expecting value: line 1 column 1\n"}),
    ("several lines", {"err": "error: a.json\nerror: a.json\n"}),
    ("several lines", {"err": "I0000 noise\nerror: a.json\n"}),
    ("no error line", {"err": ""}),
    ("no error line", {"err": "Killed\n"}),
    ("exit code", {"err": "error: a.json\n", "code": 2}),
    ("long line", {"err": f"error: a.json {'x' * 5000}\n"}),
    ("control characters", {"err": "error: a.json is \x1b[31m\n"}),
    ("called a bug", {"err": "error: a bug in resjax: a.json\n"}),
    ("traceback", {"err": "Traceback (most recent call last):\nTypeError: a\nerror: a.json\n"}),
    ("signal", {"err": "", "code": -11}),
    ("hang", {"err": "", "code": -9, "stopped": "hang"}),
    ("memory", {"err": "", "code": -9, "stopped": "memory"}),
    ("memory", {"err": "error: a.json\n", "peak": 3 * GIB}),
    ("silently wrong", {"err": "", "code": 0, "right": must_refuse}),
    ("changed a victim", {"err": "error: a.json\n", "changed": ["gone victim"]}),
  ],
)
def test_rules(word, given):
  assert judge(**given) == word


def test_enough_is_99_percent_and_none_that_may_never_be():
  def results(*words):
    done = Done(0, b"", b"", 1.0, 0, "")
    return [Judged(case(), done, cases.Verdict(word)) for word in words]

  assert passes(results(*[CLEAN] * 98, ACCEPTED, "traceback"))
  assert not passes(results(*[CLEAN] * 98, "traceback", "traceback"))
  assert not passes(results(*[CLEAN] * 998, "hang"))
  table = markdown(results(CLEAN, CLEAN, ACCEPTED, "hang")).splitlines()
  assert table[2] == "| k | 4 | 75.0% | 2 | 1 | 1 | 0 | 0 | 0 | 0 |"
  assert table[3].startswith("| all | 4 | 75.0% |")


def test_a_snapshot_sees_every_change(tmp_path):
  (tmp_path / "a").mkdir()
  (tmp_path / "a" / "kept").write_text("kept")
  (tmp_path / "a" / "link").symlink_to("kept")
  (tmp_path / "out").write_text("free")
  before = cases.snapshot(tmp_path, ("out",))
  (tmp_path / "out").write_text("changed")
  assert not cases.differences(before, cases.snapshot(tmp_path, ("out",)))
  at = os.stat(tmp_path / "a" / "kept")
  (tmp_path / "a" / "kept").write_text("KEPT")
  os.utime(tmp_path / "a" / "kept", ns=(at.st_atime_ns, at.st_mtime_ns))
  (tmp_path / "a" / "link").unlink()
  (tmp_path / "a" / "new").mkdir()
  after = cases.snapshot(tmp_path, ("out",))
  assert cases.differences(before, after) == ["gone a/link", "new a/new", "other a/kept"]


ORIGINAL = {"rows": 3, "scale": 1.5, "name": "x", "list": [1, 2], "on": True}


@pytest.mark.parametrize(
  "changes, alike",
  [
    ({}, True),
    ({"rows": 10**9}, True),
    ({"scale": 2}, True),
    ({"name": "y"}, True),
    ({"rows": -1}, False),
    ({"rows": 1.5}, False),
    ({"scale": float("nan")}, False),
    ({"name": None}, False),
    ({"list": [1]}, False),
    ({"on": 1}, False),
  ],
)
def test_which_values_another_valid_file_may_have(changes, alike):
  assert mutations.similar(ORIGINAL, json.dumps(ORIGINAL | changes).encode()) == alike


HARNESS = """
import pathlib, sys
from tests.fuzz import forks
for word in sys.argv[2:]:
  logs = pathlib.Path(sys.argv[1])
  done = forks.run("tests.fuzz.misbehaving", [word], logs, logs, {}, 3, 1 << 28)
  print(word, done.code, done.stopped, done.err.decode().splitlines()[-1:])
"""


def test_forks_that_misbehave_are_stopped():
  words = ["hang", "memory", "signal", "raise", "child", "mistake"]
  with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, "-c", HARNESS, folder, *words]
    done = subprocess.run(
      command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
  assert done.stdout.splitlines() == [
    "hang -9 hang []",
    "memory -9 memory []",
    "signal -11  []",
    "raise 1  ['lines']",
    "child 0  []",
    "mistake 1  ['error: mistake']",
  ], done.stdout + done.stderr
