"""Runs the steps of a launcher in order and undoes them on failure, or prints them."""

import contextlib
import dataclasses
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from launch.shell import heredoc
from resjax.base.processes import SIGINT_CODE, Interrupted, signals

_PATIENCE_SECONDS = 10
_END = "END_OF_TEXT"
_INSTALL = {
  "gcloud": "the Google Cloud CLI, https://cloud.google.com/sdk/docs/install",
  "kubectl": "it with `gcloud components install kubectl gke-gcloud-auth-plugin`",
  "xpk": "it with `pip install xpk`",
  "sbatch": "nothing: run this command on a login node of the cluster",
  "squeue": "nothing: run this command on a login node of the cluster",
}


@dataclasses.dataclass(frozen=True)
class Step:
  """One command of a launcher.

  Attributes:
    what: says in words what the command does.
    argv: the command and its arguments.
    stdin: the text that the command reads.
    undo: the command that removes what this one has made, even if it has made only a part; empty if
      it makes nothing.
    check: a function of the command's standard output that raises ValueError if the next steps must
      not run.
    shown: the same step without secrets, which is what is printed; None: there are none.
  """

  what: str
  argv: tuple[str, ...]
  stdin: str = ""
  undo: tuple[str, ...] = ()
  check: Callable[[str], None] | None = None
  shown: "Step | None" = None


def hide(steps: Sequence[Step], shown: Sequence[Step]) -> list[Step]:
  """Returns steps that are printed as others, which were made without secrets."""
  pairs = zip(steps, shown, strict=True)
  return [dataclasses.replace(step, shown=other) for step, other in pairs]


def text(step: Step) -> str:
  """Returns a step as lines of a shell script, with its description and how it is undone."""
  step = step.shown or step
  command = _command(step.argv)
  if step.stdin:
    command += f" {heredoc(step.stdin, _END).rstrip()}"
  lines = [f"# {step.what}", command]
  if step.undo:
    undo = _command(step.undo).replace("\n", "\n# ")
    lines.append(f"# undone by: {undo}")
  return "\n".join(lines)


def _command(argv: Sequence[str]) -> str:
  """Returns a command line in which scripts keep their line breaks."""
  return " ".join(_script(word) if _is_script(word) else shlex.quote(word) for word in argv)


def _is_script(word: str) -> bool:
  return word.endswith("\n") and word.strip() != ""


def _script(word: str) -> str:
  flag = match[0] if (match := re.match(r"--[\w-]+=", word)) else ""
  script = word.removeprefix(flag)
  return f'{flag}"$(cat {heredoc(script, _END)})"'


def run(steps: Sequence[Step], go_on: str, dry_run: bool = False) -> None:
  """Runs steps in order; when one fails or is interrupted, undoes those that have made something.

  Args:
    steps: what to run.
    go_on: the command line that the user can go on with after a failure.
    dry_run: whether the steps are printed instead of run.

  Raises:
    ValueError: a program is missing or a step failed; the message says which, and what to do.
    Interrupted: Ctrl-C or SIGTERM has ended a step.
  """
  if dry_run:
    print("\n\n".join(text(step) for step in steps))
    return
  require({step.argv[0] for step in steps})
  done: list[Step] = []
  with signals.handlers({signal.SIGTERM: signal.default_int_handler}):  # as Ctrl-C
    for number, step in enumerate(steps, 1):
      shown = step.shown or step
      title = f"step {number} of {len(steps)} ({step.what})"
      print(f"[{number}/{len(steps)}] {step.what}\n  $ {_first_line(shown.argv)}", flush=True)
      done.append(step)
      try:
        _run(step)
      except ValueError as error:  # the check comes after the step has ended well
        raise ValueError(f"{error}{_undo(done)}") from None
      except (subprocess.CalledProcessError, OSError) as error:
        why = f"failed: {_reason(error)}"
        raise ValueError(f"{title} {why}{_undo(done)}; go on with: {go_on}") from None
      except KeyboardInterrupt:
        message = f"{title} was interrupted{_undo(done)}; go on with: {go_on}"
        raise Interrupted(message, SIGINT_CODE) from None


def output(argv: Sequence[str]) -> str:
  """Returns the standard output of a command that changes nothing.

  Raises:
    ValueError: the command is missing or has failed.
  """
  require({argv[0]})
  done = subprocess.run(argv, capture_output=True, text=True)
  if done.returncode:
    raise ValueError(f"{_first_line(argv)}: {_last_line(done.stderr)}")
  return done.stdout


def require(programs: set[str]) -> None:
  """Raises ValueError if a program is not on PATH."""
  for program in sorted(programs):
    if shutil.which(program) is None:
      hint = _INSTALL.get(program, "it")
      raise ValueError(
        f"{program} is not on PATH; install {hint}, or print the commands with --dry_run"
      )


def _run(step: Step) -> None:
  """Runs a step in a process group of its own, so that all that it starts can be ended."""
  process = subprocess.Popen(
    step.argv,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE if step.check else None,
    text=True,
    start_new_session=True,
  )
  try:
    printed, _ = process.communicate(step.stdin)
  except KeyboardInterrupt:
    _end(process)
    raise
  if process.returncode:
    raise subprocess.CalledProcessError(process.returncode, step.argv)
  if step.check:
    step.check(printed)


def _end(process: subprocess.Popen) -> None:
  for number in (signal.SIGINT, signal.SIGKILL):
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(_PATIENCE_SECONDS)


def _undo(done: list[Step]) -> str:
  """Undoes steps, the last one first, and returns in words whether that succeeded."""
  made = [step for step in reversed(done) if step.undo]
  if not made:
    return ""
  # The commands that undo inherit this, so that a second Ctrl-C does not end them half-way.
  before = signal.signal(signal.SIGINT, signal.SIG_IGN)
  left = []
  for step in made:
    undo = (step.shown or step).undo
    print(f"undo: {step.what}\n  $ {_first_line(undo)}", file=sys.stderr, flush=True)
    if subprocess.run(step.undo, stdin=subprocess.DEVNULL).returncode:
      left.append(shlex.join(undo))
  signal.signal(signal.SIGINT, before)
  if left:
    return f"; something may be LEFT RUNNING, look and run: {' && '.join(left)}"
  return "; what was made is undone, nothing is left running"


def _reason(error: subprocess.CalledProcessError | OSError) -> str:
  if isinstance(error, OSError):
    return str(error)
  return f"exit code {error.returncode} of {error.cmd[0]}, which says why above"


def _first_line(argv: Sequence[str]) -> str:
  first, *rest = shlex.join(argv).splitlines()
  return f"{first} ..." if rest else first


def _last_line(text: str) -> str:
  return (text.strip().splitlines() or ["failed without a message"])[-1]
