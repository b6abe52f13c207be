"""Programs on PATH that record how they are called and answer as they are told."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from tests.helpers import forks

ROOT = pathlib.Path(__file__).parents[2]
_SYSTEM = (
  "basename bash cat date git grep gzip hostname ln ls mkdir nohup rm sed seq setsid sleep tail "
  "tar touch xargs"
)
_PROGRAM = """\
#!{python} -IS
import fcntl, json, os, re, subprocess, sys
folder = {folder!r}
stdin = "" if os.isatty(0) else sys.stdin.read()
call = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
with open(folder + "/calls", "a+") as calls:
  fcntl.flock(calls, fcntl.LOCK_EX)
  calls.seek(0)
  words = " ".join(call)
  before = [" ".join(json.loads(line)["argv"]) for line in calls]
  calls.write(json.dumps(dict(argv=call, stdin=stdin)) + "\\n")
for answer in json.load(open(folder + "/answers")):
  if re.search(answer["pattern"], words, re.DOTALL):
    seen = sum(bool(re.search(answer["pattern"], one, re.DOTALL)) for one in before)
    output = answer["outputs"][min(seen, len(answer["outputs"]) - 1)]
    if answer["run"]:
      bash = ["bash", "-c", answer["run"], *call]
      sys.exit(subprocess.call(bash, env=dict(os.environ, CALL=words)))
    if isinstance(output, int):
      print("said no", file=sys.stderr)
      sys.exit(output)
    sys.stdout.write(output)
    sys.exit(0)
"""


@dataclasses.dataclass(frozen=True)
class Call:
  argv: list[str]
  stdin: str


class FakeTools:
  """A folder of programs; `answer` comes before the calls that it is for."""

  def __init__(self, folder: pathlib.Path, *names: str):
    self.folder = folder
    self._answers = []
    (folder / "bin").mkdir(parents=True)
    (folder / "calls").touch()
    for name in names:
      path = folder / "bin" / name
      path.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder)))
      path.chmod(0o755)
    for name in _SYSTEM.split():
      if name not in names:
        (folder / "bin" / name).symlink_to(shutil.which(name))
    self._write()

  def answer(self, pattern: str, *outputs: str | int, run: str = "") -> None:
    """Answers calls that match with these outputs or exit codes in turn, the last one for ever."""
    self._answers.insert(0, {"pattern": pattern, "outputs": outputs or [""], "run": run})
    self._write()

  def _write(self) -> None:
    (self.folder / "answers").write_text(json.dumps(self._answers))

  @property
  def calls(self) -> list[Call]:
    return [Call(**json.loads(line)) for line in (self.folder / "calls").read_text().splitlines()]

  def matching(self, pattern: str) -> list[Call]:
    return [one for one in self.calls if re.search(pattern, " ".join(one.argv), re.DOTALL)]

  def environment(self, **more: str) -> dict[str, str]:
    path = str(self.folder / "bin")
    return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, **more}

  def start(self, module: str, *arguments: str, cwd: pathlib.Path = ROOT) -> subprocess.Popen:
    return subprocess.Popen(
      [sys.executable, "-m", module, *arguments],
      cwd=cwd,
      env=self.environment(),
      text=True,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
    )

  def bash(self, script: str, cwd: pathlib.Path = ROOT) -> subprocess.CompletedProcess:
    """Runs a shell script that stops at the first failure."""
    command = ["bash", "-euc", script]
    return subprocess.run(command, cwd=cwd, env=self.environment(), text=True, capture_output=True)

  def run(self, module: str, *arguments: str, cwd: pathlib.Path = ROOT) -> tuple[int, str]:
    """Returns the exit code and the output of `python -m module arguments`."""
    if cwd == ROOT or not (cwd / "launch").exists():  # the code that runs is this repository's
      return forks.run(module, list(arguments), cwd, self.environment())
    process = self.start(module, *arguments, cwd=cwd)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def shellcheck(script: str, *options: str) -> str:
  """Returns what shellcheck says of a bash script; nothing if it has no complaint."""
  program = shutil.which("shellcheck", path=pathlib.Path(sys.executable).parent)
  command = [program, "--shell=bash", *options, "-"]
  done = subprocess.run(command, input=script, text=True, capture_output=True)
  return done.stdout + done.stderr
