"""Runs commands one after the other, each in a process of its own that has a deadline.

A kernel that fails on a GPU may abort the process, spoil its CUDA context, or never end. So
whatever is measured there, an *arm*, costs no more than its own deadline, and what it has written
stays.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

OK = "ok"


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a process ended.

  Attributes:
    status: `ok`, or why it is not, in words.
    seconds: wall time.
  """

  status: str
  seconds: float

  @property
  def ok(self) -> bool:
    """Whether it ended by itself with exit code 0."""
    return self.status == OK


def run(
  command: Sequence[str],
  log: Path,
  deadline: float,
) -> Outcome:
  """Runs a command, and ends it and what it has started when its time is over.

  Args:
    command: the program and its arguments.
    log: file for what it prints; the folder is made.
    deadline: seconds after which it is killed.
  """
  log.parent.mkdir(parents=True, exist_ok=True)
  begin = time.monotonic()
  with log.open("w") as output:
    process = subprocess.Popen(
      command,
      stdout=output,
      stderr=subprocess.STDOUT,
      stdin=subprocess.DEVNULL,
      start_new_session=True,
    )
    try:
      status = ended(process.wait(max(deadline, 0.0)), log)
    except subprocess.TimeoutExpired:
      status = f"over its deadline of {deadline:.0f} s"
    finally:
      _end(process)
  return Outcome(status, round(time.monotonic() - begin, 3))


def tail(log: Path, lines: int = 1) -> str:
  """Returns the last lines of a log that are not empty."""
  if not log.exists():
    return ""
  found = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
  return "\n".join(found[-lines:])


def ended(code: int, log: Path) -> str:
  """Returns how a process ended: `ok`, or its signal or exit code and the last line of its log."""
  if code == 0:
    return OK
  how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
  return f"{how}: {tail(log)}"[:300].rstrip(": ")


def _end(process: subprocess.Popen) -> None:
  """Ends a process, and those that it has started and left behind."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)
  process.kill()
  process.wait()
