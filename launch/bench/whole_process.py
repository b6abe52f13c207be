"""Runs a program as a process of its own, and tells what it took: seconds and memory."""

import dataclasses
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_POLL = 0.02  # seconds


@dataclasses.dataclass(frozen=True)
class Used:
  """What a process took.

  Attributes:
    seconds: by the clock.
    core_seconds: of all cores together, its ended children included.
    peak_bytes: of memory, without its children; 0 where the system is not Linux.
    said: what it printed, without what it reported as errors.
  """

  seconds: float
  core_seconds: float
  peak_bytes: int
  said: str


def run(
  words: Sequence[str],
  cwd: Path,
  variables: Mapping[str, str],
  limit: float,
  enough: Callable[[], bool] = lambda: False,
) -> Used:
  """Runs a program to its end, or until enough has happened.

  Args:
    words: the program and its arguments.
    cwd: the folder that it runs in.
    variables: its environment, beside that of this process.
    limit: seconds after which it is given up.
    enough: is asked again and again; once it returns True the process is killed, which is no error.

  Raises:
    ValueError: it fails, or takes too long.
  """
  started = time.perf_counter()
  with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
    process = subprocess.Popen(
      words, env={**os.environ, **variables}, cwd=cwd, stdout=said, stderr=errors
    )
    ended, peak = 0, 0
    while not ended and not enough():
      peak = max(peak, _peak_bytes(process.pid))
      time.sleep(_POLL)
      ended, status, used = os.wait4(process.pid, os.WNOHANG)
      if not ended and time.perf_counter() - started > limit:
        process.kill()
    seconds = time.perf_counter() - started
    if not ended:
      process.kill()
      _, _, used = os.wait4(process.pid, 0)
      status = 0
    process.returncode = os.waitstatus_to_exitcode(status)
    for file in (said, errors):
      file.seek(0)
    if process.returncode:
      last = (said.read() + errors.read())[-2000:].strip()
      raise ValueError(f"{' '.join(words)} ended with {process.returncode}: {last}")
    return Used(seconds, used.ru_utime + used.ru_stime, peak, said.read())


def _peak_bytes(number: int) -> int:
  """Returns the peak so far of a process that runs, as Linux has it.

  What `wait4` says begins with the peak of the process that started it.
  """
  status = Path(f"/proc/{number}/status")
  found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
  return int(found[1]) * 1024 if found else 0  # one that has ended, but is not waited for
