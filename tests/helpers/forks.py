"""Many command lines, each in a fork of one process that has imported what they need.

For what ends early: most of its seconds are imports.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import NoReturn

from launch import cli
from tests.helpers import runs

SECONDS = 600  # a report takes minutes on a machine with much else to do


@contextlib.contextmanager
def command(module: str, **variables: object) -> Iterator[Callable[..., tuple[int, str]]]:
  """Yields a function of a command's arguments: its exit code, and what it printed."""
  with _start(module, **variables) as process:
    yield lambda *arguments: _ask(process, {"arguments": [str(one) for one in arguments]})


def run(
  module: str, arguments: list[str], cwd: pathlib.Path, environment: dict[str, str]
) -> tuple[int, str]:
  """Returns the exit code and the output of `python -m module arguments`.

  The process that is forked has imported this repository's `launch.cli`, and serves until the one
  that asks ends.
  """
  request = {"module": module, "arguments": arguments, "cwd": str(cwd), "environment": environment}
  return _ask(_shared(), request)


@functools.cache
def _shared() -> subprocess.Popen:
  return _start("launch.cli")


def _start(module: str, **variables: object) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, "-m", "tests.helpers.forks", module],
    cwd=runs.REPOSITORY,
    env=runs.environment(**variables),
    text=True,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  )


def _ask(process: subprocess.Popen, request: dict) -> tuple[int, str]:
  process.stdin.write(json.dumps(request) + "\n")
  process.stdin.flush()
  return tuple(json.loads(process.stdout.readline()))


def serve(module: str) -> None:
  """Runs what every line of the standard input asks for.

  A request without a module is one for the command that is imported here.
  """
  imported = importlib.import_module(module)
  gc.freeze()  # the collection at the end of a fork would otherwise copy every page
  for line in sys.stdin:
    request = json.loads(line)
    with tempfile.TemporaryFile() as output:
      child = _fork()
      if child == 0:
        signal.alarm(SECONDS)
        with open(os.devnull) as nothing:
          os.dup2(nothing.fileno(), sys.stdin.fileno())
        for stream in (sys.stdout, sys.stderr):
          os.dup2(output.fileno(), stream.fileno())
        if "module" in request:
          _run_module(**request)
        sys.argv = [imported.__file__, *request["arguments"]]
        cli.run(imported.main)
      code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
      output.seek(0)
      print(json.dumps([code, output.read().decode()]), flush=True)


def _run_module(
  module: str, arguments: list[str], cwd: str, environment: dict[str, str]
) -> NoReturn:
  """Runs a module as the main one; it ends the process."""
  os.chdir(cwd)
  os.environ.clear()
  os.environ.update(environment)
  sys.argv = [module, *arguments]
  runpy.run_module(module, run_name="__main__", alter_sys=True)
  sys.exit(0)


def _fork() -> int:
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of threads: an import leaves none that holds a lock
    return os.fork()


if __name__ == "__main__":
  serve(sys.argv[1])
