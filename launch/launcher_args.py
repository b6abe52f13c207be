"""Checks the words, the command and the variables that a launcher is given."""

import ast
import difflib
import itertools
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from resjax.__main__ import COMMANDS
from resjax.base import locations, ranges, redaction
from resjax.cli import shipped, workdir_flag

_MOST_BYTES = 1 << 20  # of a config file
_Action = TypeVar("_Action", bound=Callable)

# The launchers, and what reads its words itself.
_NOT_CHECKED = ("tpu", "gke", "slurm", "local", "completion", "bench")
_NAMES = [name for group in COMMANDS.values() for name in group if name not in _NOT_CHECKED]

EXAMPLE = "-- resjax train --config=tiny --config.workdir=gs://BUCKET/RUN"


def choose(
  actions: Mapping[str, _Action],
  words: Sequence[str],
  command: Sequence[str],
  runs_command: Sequence[str] = ("run",),
) -> _Action:
  """Returns the action that the command line names.

  Args:
    actions: the actions by name.
    words: the words of the command line.
    command: what follows `--`.
    runs_command: the names of the actions that run a command.

  Raises:
    ValueError: there is not exactly one name, it is not known, or its action runs no command and
      there is one.
  """
  allowed = ", ".join(actions)
  if len(words) != 1:
    raise ValueError(f"one word says what to do, of: {allowed}; got {shlex.join(words) or 'none'}")
  if words[0] not in actions:
    raise ValueError(f"{words[0]!r} is not known; choose one of: {allowed}")
  if command and words[0] not in runs_command:
    raise ValueError(f"{words[0]} runs no command; leave out what follows --")
  return actions[words[0]]


def check_google_name(name: str) -> None:
  """Raises ValueError if a resource or JobSet of Google Cloud cannot have this --name.

  GKE's controllers add parts to the names of pods, whose last part may have 63 letters in all.
  """
  if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", name):
    raise ValueError(f"--name={name} must be up to 40 of a-z, 0-9 and -, first a letter")


def check_reservation(name: str) -> None:
  """Raises ValueError if no reservation of Google Cloud has this name, which may have a project."""
  project = r"(projects/[a-z][-a-z0-9:.]*/reservations/)?"
  if not re.fullmatch(project + r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name):
    raise ValueError(
      f"--reservation={name} is no name of a reservation; give NAME, or of another project "
      "projects/PROJECT/reservations/NAME"
    )


def same_again(module: str) -> str:
  """Returns the command line that runs this process again, with `***` in place of secrets."""
  return shlex.join(["resjax", module.removeprefix("launch."), *redaction.words(sys.argv[1:])])


def require_command(command: Sequence[str]) -> None:
  """Raises ValueError if no command follows `--`, or a word cannot be part of a script."""
  if not command:
    raise ValueError(f"say what to run, for example: {EXAMPLE}")
  for word in command:
    require_text(word, "the command")


def require_text(text: str, where: str) -> None:
  """Raises ValueError if a text is no UTF-8, as scripts and manifests are."""
  if not ranges.is_utf8(text):
    raise ValueError(f"{where}: {redaction.words([text])[0]!r} is no UTF-8")


def require_shared_workdir(command: Sequence[str], shared: Sequence[str], otherwise: str) -> None:
  """Checks that all hosts see the workdir of a training or a sweep, and that it outlives them.

  Args:
    command: the command to run; others are not checked.
    shared: the folders that all hosts share.
    otherwise: advice on what the user can do instead of using a bucket.

  Raises:
    ValueError: the workdir is on the disk of a single host.
  """
  workdir = _workdir(command)
  if workdir is None or workdir.startswith("gs://") or is_under(workdir, shared):
    return
  raise ValueError(
    f"config.workdir={workdir!r} is on the disk of one host; set --config.workdir=gs://BUCKET/RUN, "
    f"or {otherwise}"
  )


def is_under(path: str, folders: Sequence[str]) -> bool:
  """Returns whether a path is one of some folders or lies in one; empty names are no folders."""
  return any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in folders if folder)


def environment(settings: Sequence[str]) -> dict[str, str]:
  """Returns the environment variables that `KEY=VALUE` words set.

  Raises:
    ValueError: a word has another form.
  """
  for setting in settings:
    if not re.match(r"[A-Za-z_]\w*=", setting, re.ASCII):
      raise ValueError(f"--env={redaction.words([setting])[0]} is not KEY=VALUE")
    require_text(setting, "--env")
  return dict(setting.split("=", 1) for setting in settings)


def resjax_command(command: Sequence[str]) -> tuple[str, list[str]] | None:
  """Returns the name and the arguments of the command of resjax that is run; None of others.

  Arguments are unchanged, except for --workdir.

  Raises:
    ValueError: resjax has no command of that name.
  """
  for at, (word, following) in enumerate(itertools.pairwise(command)):
    name = following
    if word == "-m" and following.startswith("launch."):
      name = following.removeprefix("launch.")
    elif Path(word).name != "resjax":
      continue
    if name in _NAMES:
      return name, workdir_flag.spelled_out(command[at + 2 :])
    if name not in _NOT_CHECKED and (at == 0 or command[at - 1] == "-m"):
      near = difflib.get_close_matches(name, _NAMES, 1)
      hint = f"did you mean {near[0]}?" if near else "resjax --help lists all"
      raise ValueError(f"resjax has no command {redaction.words([name])[0]!r}; {hint}")
  return None


def joined(words: Sequence[str]) -> list[str]:
  """Returns the words of a command line with --NAME=VALUE in place of --NAME VALUE.

  The command has a config, and with it no words of its own that could follow a flag.
  """
  found: list[str] = []
  for word in words:
    is_value = not word.startswith("-") or re.match(r"-[\d.]", word)
    if is_value and found and found[-1].startswith("-") and "=" not in found[-1]:
      found[-1] += f"={word}"
    else:
      found.append(word)
  return found


def setting(arguments: Sequence[str], name: str) -> str:
  """Returns the value of a flag as the command line gives it last, or an empty text."""
  given = (word.lstrip("-").partition("=") for word in joined(arguments) if word.startswith("-"))
  return next((value for key, _, value in reversed([*given]) if key == name), "")


def config_file(arguments: Sequence[str]) -> Path:
  """Returns the config file of the arguments of a training, which may name one of resjax's own.

  Raises:
    ValueError: there is none.
  """
  name = setting(arguments, "config").partition(":")[0]
  if not name:
    raise ValueError(f"{shlex.join(redaction.words(arguments))}: it has no --config=FILE")
  try:
    return shipped.config_file(name)
  except ValueError as error:
    raise ValueError(f"--config={error}") from None


def own_config(command: Sequence[str]) -> str:
  """Returns the config file of a command of resjax; empty: it has none of its own."""
  found = resjax_command(command)
  name = setting(found[1], "config").partition(":")[0] if found else ""
  return "" if name in shipped.config_names() else name


def _workdir(command: Sequence[str]) -> str | None:
  """Returns the config.workdir of a training or a sweep, None for any other command.

  The config file is Python: here it is only read.
  """
  found = resjax_command(command)
  if found is None or found[0] not in ("train", "sweep"):
    return None
  _, arguments = found
  place = config_file(arguments)
  return setting(arguments, "config.workdir") or _written_workdir(str(place))


def _written_workdir(path: str) -> str:
  """Returns the workdir that the text of a config file sets to a literal in one place.

  Raises:
    ValueError: it has another form, so that only running it would tell.
  """
  try:
    tree = ast.parse(locations.read_bytes(Path(path), _MOST_BYTES))
  except SyntaxError as error:
    raise ValueError(f"{path}:{error.lineno}: {error.msg}") from None
  found = [value for node in ast.walk(tree) for value in _settings_of(node)]
  if len(found) == 1 and isinstance(found[0], ast.Constant) and isinstance(found[0].value, str):
    return found[0].value
  raise ValueError(
    f"{path} sets no workdir that can be read without running it; set "
    "--config.workdir=gs://BUCKET/RUN"
  )


def _settings_of(node: ast.AST) -> Iterator[ast.expr | None]:
  """Yields the expressions that a node of a program assigns to `workdir`."""
  if isinstance(node, ast.Assign):
    for target in node.targets:
      key = target.slice if isinstance(target, ast.Subscript) else None
      if isinstance(key, ast.Constant) and key.value == "workdir":
        yield node.value
      if isinstance(target, ast.Attribute) and target.attr == "workdir":
        yield node.value
  elif isinstance(node, ast.keyword) and node.arg == "workdir":
    yield node.value
  elif isinstance(node, ast.Dict):
    for key, value in zip(node.keys, node.values, strict=True):
      if isinstance(key, ast.Constant) and key.value == "workdir":
        yield value
