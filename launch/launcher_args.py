"""The command that a launcher runs on many hosts, and what it writes there."""

import re
import runpy
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

EXAMPLE = "-- python -m launch.train --config=configs/tiny.py --config.workdir=gs://BUCKET/RUN"


def choose(verbs: Mapping[str, Callable[..., None]], words: Sequence[str]) -> Callable[..., None]:
  """Returns the function of the verb on the command line.

  Raises:
    ValueError: there is not exactly one, or it is not known.
  """
  allowed = ", ".join(verbs)
  if len(words) != 1:
    raise ValueError(f"one word says what to do, of: {allowed}; got {shlex.join(words) or 'none'}")
  if words[0] not in verbs:
    raise ValueError(f"{words[0]!r} is not known; choose one of: {allowed}")
  return verbs[words[0]]


def same_again(module: str) -> str:
  """Returns the command line of this process, to be run again."""
  return shlex.join(["python", "-m", module, *sys.argv[1:]])


def require_command(command: Sequence[str]) -> None:
  """Raises ValueError if there is no command to run."""
  if not command:
    raise ValueError(f"say what to run, for example: {EXAMPLE}")


def require_shared_workdir(command: Sequence[str], shared: Sequence[str], otherwise: str) -> None:
  """Checks that the workdir of a `launch.train` is one that all hosts see and that outlives them.

  Args:
    command: any command; others than launch.train are not looked into.
    shared: folders that all hosts share.
    otherwise: what else could be done, in words.

  Raises:
    ValueError: the workdir lies on a host's own disk.
  """
  workdir = _workdir(command)
  if workdir is None or workdir.startswith("gs://"):
    return
  if any(f"{workdir}/".startswith(f"{folder.rstrip('/')}/") for folder in shared if folder):
    return
  raise ValueError(
    f"config.workdir={workdir!r} is on the disk of one host; set --config.workdir=gs://BUCKET/RUN, "
    f"or {otherwise}"
  )


def environment(settings: Sequence[str]) -> dict[str, str]:
  """Returns the variables of `KEY=VALUE` words.

  Raises:
    ValueError: one has another form.
  """
  for setting in settings:
    if not re.match(r"[A-Za-z_]\w*=", setting):
      raise ValueError(f"--env={setting} is not KEY=VALUE")
  return dict(setting.split("=", 1) for setting in settings)


def _workdir(command: Sequence[str]) -> str | None:
  """The config.workdir of a `launch.train` command, None for another command."""
  if "launch.train" not in command:
    return None
  settings = dict(word.lstrip("-").split("=", 1) for word in command if "=" in word)
  if "config" not in settings:
    raise ValueError(f"{shlex.join(command)}: it has no --config=FILE")
  path, *argument = settings["config"].split(":", 1)
  if not Path(path).is_file():
    raise ValueError(f"--config={path}: no such file; configs/ has those that come with resjax")
  config = runpy.run_path(path)["get_config"](*argument)
  return settings.get("config.workdir", config.workdir)
