"""Many command lines, each in a fork of one process that has imported what they need.

For what ends early: most of its seconds are imports.
"""

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
import types
import warnings
from collections.abc import Callable, Iterable
from typing import NoReturn

from launch import flag_check
from resjax.__main__ import main
from tests.helpers import runs

_IMPORTS = (
  "resjax.cli.command", "resjax.train.experiment", "resjax.cli.actions.loading",
  "resjax.train.dry_run",
  "resjax.train.loop", "resjax.study.analysis.interventions", "resjax.study.analysis.report.page",
  "resjax.study.sweeps.table", "resjax.aot.compile_step", "resjax.data.build_table",
  "resjax.base.hardware.slices", "pyarrow.parquet",
)  # fmt: skip
LAUNCHERS = ("tpu", "gke", "slurm", "local")
SECONDS = 600  # a report takes minutes on a machine with much else to do


def command(module: str, **variables: object) -> Callable[..., tuple[int, str]]:
  """Returns a function of a command's arguments: its exit code, and what it printed.

  Args:
    module: the name of a command of resjax, or a module with dots in its name.
    variables: the environment.
  """
  environment = runs.environment(**variables)
  return lambda *arguments: run(module, map(str, arguments), runs.REPOSITORY, environment)


def run(
  module: str, arguments: Iterable[str], cwd: pathlib.Path, environment: dict[str, str]
) -> tuple[int, str]:
  """Returns the exit code and the output of `resjax module arguments`, see `command`.

  The process that is forked has imported this repository's code, and serves until the one that
  asks ends.
  """
  process = _server()
  request = {
    "module": module, "arguments": list(arguments), "cwd": str(cwd), "environment": environment
  }  # fmt: skip
  process.stdin.write(json.dumps(request) + "\n")
  process.stdin.flush()
  return tuple(json.loads(process.stdout.readline()))


@functools.cache
def _server() -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, "-m", "tests.helpers.forks"],
    cwd=runs.REPOSITORY,
    env=runs.environment(),
    text=True,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  )


def import_all() -> None:
  """Imports what commands need; they themselves define flags, which clash."""
  for name in _IMPORTS:
    importlib.import_module(name)
  gc.freeze()  # a collection in a fork would otherwise copy every page


def _serve() -> None:
  """Runs what every line of the standard input asks for."""
  import_all()
  for line in sys.stdin:
    with tempfile.TemporaryFile() as output:
      child = _fork()
      if child == 0:
        signal.alarm(SECONDS)
        with open(os.devnull) as nothing:
          os.dup2(nothing.fileno(), sys.stdin.fileno())
        for stream in (sys.stdout, sys.stderr):
          os.dup2(output.fileno(), stream.fileno())
        _run_module(**json.loads(line))
      code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
      output.seek(0)
      print(json.dumps([code, output.read().decode()]), flush=True)


def run_here(module: str, arguments: list[str]) -> None:
  """Runs a command of resjax, or a module with dots in its name, in this process."""
  if "." in module:
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
  else:
    sys.argv = ["resjax", module, *arguments]
    main()


def _run_module(
  module: str, arguments: list[str], cwd: str, environment: dict[str, str]
) -> NoReturn:
  """Runs a command or module; it ends the process."""
  os.chdir(cwd)
  os.environ.clear()
  os.environ.update(environment)
  if module.removeprefix("launch.") in LAUNCHERS:
    _check_flags_here()
  run_here(module, arguments)
  sys.exit(0)


def _check_flags_here() -> None:
  """Lets a launcher check the flags of its command in a fork made now, in place of a new process.

  Until the launcher is imported, this process has no flags that clash with the command's.
  """
  asked, asks = os.pipe()
  answer, answers = os.pipe()
  fork = _fork()
  if fork == 0:
    os.close(asks)
    with open(asked) as words:
      line = words.read()
    if not line:
      os._exit(0)  # the launcher has ended
    name, *arguments = json.loads(line)
    with open(answers, "w") as sys.stdout:  # a new one: the old one has been a file, and would seek
      sys.stderr = sys.stdout
      run_here(name, arguments)
    sys.exit(0)
  os.close(answers)

  def check(line: list[str], **_: object) -> subprocess.CompletedProcess:
    with open(asks, "w") as words, open(answer, "rb") as said:
      words.write(json.dumps(line[line.index("resjax") + 1 :]))
      words.close()
      output = said.read()
    code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    return subprocess.CompletedProcess(line, code, b"", output)

  flag_check.subprocess = types.SimpleNamespace(**vars(subprocess) | {"run": check})


def _fork() -> int:
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of threads: an import leaves none that holds a lock
    return os.fork()


if __name__ == "__main__":
  _serve()
