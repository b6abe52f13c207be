"""Many command lines of one command, each in a fork of one process that has imported it.

For what ends early: most of a mistake's seconds are imports.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator

from launch import cli
from tests.helpers import runs

SECONDS = 120


@contextlib.contextmanager
def command(module: str, **variables: object) -> Iterator[Callable[..., tuple[int, str]]]:
  """Yields a function of a command's arguments: its exit code, and what it printed."""
  process = subprocess.Popen(
    [sys.executable, "-m", "tests.helpers.forks", module],
    cwd=runs.REPOSITORY,
    env=runs.environment(**variables),
    text=True,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  )

  def run(*arguments: object) -> tuple[int, str]:
    process.stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
    process.stdin.flush()
    return tuple(json.loads(process.stdout.readline()))

  with process:
    yield run


def serve(module: str) -> None:
  """Runs the command for every list of arguments on the standard input."""
  imported = importlib.import_module(module)
  for line in sys.stdin:
    with tempfile.TemporaryFile() as output:
      child = _fork()
      if child == 0:
        signal.alarm(SECONDS)
        for stream in (sys.stdout, sys.stderr):
          os.dup2(output.fileno(), stream.fileno())
        sys.argv = [imported.__file__, *json.loads(line)]
        cli.run(imported.main)
      code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
      output.seek(0)
      print(json.dumps([code, output.read().decode()]), flush=True)


def _fork() -> int:
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of threads: an import leaves none that holds a lock
    return os.fork()


if __name__ == "__main__":
  serve(sys.argv[1])
