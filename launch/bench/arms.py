"""Runs a command in a process of its own that has a deadline, and tells how a process ended.

A kernel that fails on a GPU may abort the process, spoil its CUDA context, or never end. So
each measurement, an *arm*, runs in a process that ends at a deadline, and its records so far are
kept.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

OK = "ok"
_DUMP = "Fatal Python error"  # what Python prints behind the last words of what aborts it


def run(command: Sequence[str], log: Path, deadline: float) -> str:
  """Runs a command; kills it and its children at the deadline.

  Args:
    command: the program and its arguments.
    log: file for its output; the folder is made.
    deadline: seconds after which it is killed.

  Returns:
    `ok` if it ended by itself with exit code 0, or why not, in words.
  """
  log.parent.mkdir(parents=True, exist_ok=True)
  with log.open("w") as output:
    process = subprocess.Popen(
      command,
      stdout=output,
      stderr=subprocess.STDOUT,
      stdin=subprocess.DEVNULL,
      start_new_session=True,
    )
    try:
      return ended(process.wait(max(deadline, 0.0)), log)
    except subprocess.TimeoutExpired:
      return f"over its deadline of {deadline:.0f} s"
    finally:
      _end(process)


def ended(code: int, log: Path, start: int = 0) -> str:
  """Returns how a process ended: `ok`, or its signal or exit code and its last words.

  Args:
    code: the return code of `subprocess`.
    log: the file with its output.
    start: how many bytes the log had before.
  """
  if code == 0:
    return OK
  how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
  text = log.read_bytes()[start:].decode(errors="replace").partition(_DUMP)[0]
  words = [line for line in text.splitlines() if line.strip()] or [""]
  return f"{how}: {words[-1]}"[:300].rstrip(": ")


def _end(process: subprocess.Popen) -> None:
  """Ends a process, and those that it has started and left behind."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)
  process.kill()
  process.wait()
