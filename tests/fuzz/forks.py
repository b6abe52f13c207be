"""Runs commands in forks of this process, which has imported what they need and no device.

A fork takes milliseconds where an interpreter that imports JAX takes seconds. Each one has a limit
of time and of memory, and its output goes to files.
"""

import contextlib
import dataclasses
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from tests.helpers import forks, xla
from tests.helpers.forks import run_here

ROOT = Path(__file__).parents[2]
_POLL_SECONDS = 0.02
_PAGE = resource.getpagesize()
_MOST_OUTPUT = 1 << 20  # bytes of a stream that are looked at


@dataclasses.dataclass(frozen=True)
class Done:
  """How a command ended.

  Attributes:
    code: its exit code, or minus the number of the signal that ended it.
    out: what it wrote to the standard output.
    err: what it wrote to the standard error.
    seconds: how long it ran.
    peak: the largest resident memory in bytes.
    stopped: why it was killed: `hang`, `memory`, or nothing.
  """

  code: int
  out: bytes
  err: bytes
  seconds: float
  peak: int
  stopped: str


def prepare(programs: Path) -> None:
  """Imports what commands need, and sets what they inherit.

  Args:
    programs: the folder where compiled programs are kept, so that each is compiled once.
  """
  os.environ.update(
    JAX_PLATFORMS="cpu",
    XLA_FLAGS=xla.QUICK,
    JAX_COMPILATION_CACHE_DIR=str(programs),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
    JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    PYTHONPATH=str(ROOT),
    COLUMNS="200",
  )
  sys.path.insert(0, str(ROOT))
  sys.dont_write_bytecode = True  # Python would write beside a config file
  forks.import_all()


def run(
  command: str,
  arguments: list[str],
  cwd: Path,
  logs: Path,
  environment: Mapping[str, str],
  most_seconds: float,
  most_bytes: int,
) -> Done:
  """Runs `resjax command arguments` in a fork.

  Args:
    command: the name of the command.
    arguments: the arguments of the command.
    cwd: the folder in which it runs.
    logs: a folder for its output.
    environment: variables that are added.
    most_seconds: after so long it is killed.
    most_bytes: with more resident memory it is killed.
  """
  files = [logs / "stdout", logs / "stderr"]
  started = time.monotonic()
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of threads: an import leaves none that holds a lock
    child = os.fork()
  if child == 0:
    _become(command, arguments, cwd, files, environment)
  stopped, usage = "", None
  while usage is None:
    found, status, usage_now = os.wait4(child, os.WNOHANG)
    if found:
      usage = usage_now
      break
    if time.monotonic() - started > most_seconds:
      stopped = "hang"
    elif _resident(child) > most_bytes:
      stopped = "memory"
    if stopped:
      _kill(child)
    time.sleep(_POLL_SECONDS)
  _kill(child)  # what it has started and left behind
  out, err = (_beginning(file) for file in files)
  code = os.waitstatus_to_exitcode(status)
  return Done(code, out, err, time.monotonic() - started, usage.ru_maxrss * 1024, stopped)


def _become(
  command: str, arguments: list[str], cwd: Path, files: list[Path], environment: Mapping[str, str]
) -> NoReturn:
  """Turns the forked process into the command."""
  code = 1
  try:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number, path in enumerate(["/dev/null", *files]):
      flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
      os.dup2(os.open(path, flags, 0o644), number)
    os.chdir(cwd)
    os.environ.update(environment)
    run_here(command, arguments)
    code = 0
  except SystemExit as end:
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if isinstance(end.code, str):
      print(end.code, file=sys.stderr)
  except BaseException:
    traceback.print_exc()
  finally:
    with contextlib.suppress(Exception):
      sys.stdout.flush()
      sys.stderr.flush()
    os._exit(code)


def _resident(process: int) -> int:
  try:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
  except (OSError, IndexError):  # it has ended
    return 0


def _kill(process: int) -> None:
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(process, signal.SIGKILL)


def _beginning(path: Path) -> bytes:
  if not path.exists():
    return b""
  with path.open("rb") as file:
    return file.read(_MOST_OUTPUT)
