"""Runs tests in copies of the checkout that have a fault, and says which test failed."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults import faults
from tests.faults.faults import Fault

# What `make test` runs, and what it leaves out.
QUICK, LONG = "not slow and not release", "slow or release"
# The lists themselves would fail wherever one of their faults is applied.
_LEFT_OUT = "tests/faults/"


class Stopped(Exception):
  """The command was interrupted."""


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What became of a fault.

  Attributes:
    fault: the fault.
    status: `caught` by a failing test; `caught at import`, where a test file cannot be imported;
      `escaped`, all tests pass; `time limit`; or `no verdict`, the tests could not be run.
    test: the test, or the file, that caught it.
    stage: `named`, `fast` or `slow`, the selection of tests that was run last.
    reason: the first line of the error.
    seconds: how long it took.
  """

  fault: Fault
  status: str
  test: str = ""
  stage: str = ""
  reason: str = ""
  seconds: float = 0.0

  @property
  def caught(self) -> bool:
    """Whether a test tells the fault."""
    return self.status.startswith("caught")


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What one run of pytest came to; `failures` are (kind, test, reason)."""

  code: int | None
  failures: tuple[tuple[str, str, str], ...]
  last_line: str


class Runner:
  """Copies a checkout, applies faults to the copies and runs tests there.

  Args:
    root: the checkout, a working tree of git.
    limit: seconds that all tests of one fault may take.
    workers: processes of pytest in the runs of all tests.
    slow: whether the slow tests are run where the others all pass.
    named_only: whether the named tests alone are run.
  """

  def __init__(
    self,
    root: Path,
    *,
    limit: float = 1800,
    workers: int = 2,
    slow: bool = False,
    named_only: bool = False,
  ):
    self._root, self._limit, self._workers = root, limit, workers
    self._slow, self._named_only = slow, named_only
    self._files = _tracked(root)
    self._running: set[subprocess.Popen] = set()
    self._lock, self._stopped = threading.Lock(), False

  def stop(self) -> None:
    """Ends the tests that are running, and starts no more."""
    with self._lock:
      self._stopped = True
      for process in self._running:
        _kill(process)

  def judge(self, fault: Fault) -> Verdict:
    """Runs tests until one of them fails with the fault.

    Raises:
      Stopped: `stop` was called.
    """
    began = time.monotonic()
    with self._copy() as copy:
      (copy / fault.file).write_text(faults.apply(fault, self._root), encoding="utf-8")
      for stage, arguments in self._stages(fault):
        left = self._limit - (time.monotonic() - began)
        found = self._judged(fault, stage, self._pytest(copy, ["-x", *arguments], left))
        if found.status != "escaped":
          break
    return dataclasses.replace(found, seconds=time.monotonic() - began)

  def confirmed(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Returns the verdicts without those whose tests fail in a checkout without a fault, too.

    Raises:
      Stopped: `stop` was called.
    """
    tests = list(dict.fromkeys(verdict.test for verdict in verdicts if verdict.caught))
    if not tests:
      return list(verdicts)
    with self._copy() as copy:
      outcome = self._pytest(copy, ["--continue-on-collection-errors", *tests], self._limit)
    alike = {test for _, test, _ in outcome.failures}
    unknown = outcome.code not in (0, 1, 2) and not alike
    return [
      verdict
      if not verdict.caught or not (unknown or verdict.test in alike)
      else dataclasses.replace(
        verdict,
        status="no verdict",
        reason=outcome.last_line if unknown else f"without it too: {verdict.reason}",
      )
      for verdict in verdicts
    ]

  def _stages(self, fault: Fault) -> Iterator[tuple[str, list[str]]]:
    named = [*(["-k", fault.select] if fault.select else []), *fault.tests]
    whole = ["-n", str(self._workers), "--dist=loadfile"]
    yield "named", ["-m", QUICK, *named]
    if not self._named_only:
      yield "fast", ["-m", QUICK, *whole]
    if self._slow:
      yield "slow", ["-m", LONG, *named]
    if self._slow and not self._named_only:
      yield "slow", ["-m", LONG, *whole]

  def _judged(self, fault: Fault, stage: str, outcome: Outcome) -> Verdict:
    for wanted, status in (("failed", "caught"), ("import", "caught at import")):
      for kind, test, reason in outcome.failures:
        if kind == wanted:
          return Verdict(fault, status, test, stage, reason)
    if outcome.code is None:
      return Verdict(fault, "time limit", stage=stage)
    if outcome.code in (0, 5):  # all passed, or none of the files has such tests
      return Verdict(fault, "escaped", stage=stage)
    return Verdict(fault, "no verdict", stage=stage, reason=outcome.last_line)

  @contextmanager
  def _copy(self) -> Iterator[Path]:
    """Gives a folder with what git tracks, as it is in the working tree, without the faults."""
    with tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True) as folder:
      copy = Path(folder).resolve() / "checkout"
      for name in self._files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(self._root / name, copy / name, follow_symlinks=False)
      yield copy

  def _pytest(self, copy: Path, arguments: Sequence[str], seconds: float) -> Outcome:
    own = copy.parent
    report, log = own / "report.jsonl", own / "log.txt"
    report.write_text("")
    shutil.copy(faults.HERE / "failures.py", own / "fault_failures.py")
    environment = os.environ | {
      "JAX_PLATFORMS": "cpu",
      "PYTHONPATH": os.pathsep.join([str(copy), str(own)]),
      "FAULT_REPORT": str(report),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "fault_failures", *arguments]
    with log.open("w") as file:
      with self._lock:
        if self._stopped:
          raise Stopped
        process = subprocess.Popen(
          command, cwd=copy, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
          start_new_session=True,
        )  # fmt: skip
        self._running.add(process)
      try:
        code = process.wait(max(seconds, 0))
      except subprocess.TimeoutExpired:
        code = None
      finally:
        _kill(process)  # and what it has left behind
        process.wait()
        with self._lock:
          self._running.remove(process)
          if self._stopped:
            raise Stopped
    lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    for kind, place, _ in lines:
      if kind == "root" and Path(place) != copy:
        raise ValueError(f"the tests import resjax from {place}, not from the copy of the checkout")
    failures = tuple((kind, test, reason) for kind, test, reason in lines if kind != "root")
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = said[-1] if said else "pytest said nothing"
    return Outcome(code, failures, f"exit code {code}: {last}")


def _tracked(root: Path) -> list[str]:
  """Returns the names of the files that git tracks and that are there, without the faults."""
  listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
  names = listed.stdout.decode().split("\0")
  return [
    name for name in names if name and not name.startswith(_LEFT_OUT) and (root / name).is_file()
  ]


def _kill(process: subprocess.Popen) -> None:
  with suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)
