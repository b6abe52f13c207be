"""The code that a page shows: what each command is called with, and how resjax's own are run.

Commands stand in fenced blocks that are marked sh or not marked; what they print stands in blocks
that are marked `text`.
"""

import pathlib
import re

from resjax import __main__
from tests.helpers import forks, runs
from tests.helpers.fakes import ROOT, FakeTools

BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
  *sorted(page for page in (ROOT / "docs").rglob("*.md") if "generated" not in page.parts),
  *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
  *sorted((ROOT / "launch").glob("*/README.md")),
]
_SHELL = ("", "sh", "bash")
COMMANDS = [name for group in __main__.COMMANDS.values() for name in group]
# What these do costs money, hours or a cluster: --dry_run prints it.
DRY = ("train", "tpu", "gke", "slurm", "local")


def script(page: pathlib.Path) -> str:
  """Returns all commands of a page as one shell script."""
  found = BLOCK.findall(page.read_text())
  return "\n".join(block for language, block in found if language in _SHELL)


def python(page: pathlib.Path) -> list[str]:
  """Returns the blocks of Python of a page."""
  return [block for language, block in BLOCK.findall(page.read_text()) if language == "python"]


def calls(page: pathlib.Path, tools: FakeTools, cwd: pathlib.Path = ROOT) -> list[list[str]]:
  """Returns the words of every command of a page, with its variables filled in.

  Args:
    page: the page.
    tools: fakes for the programs that the page calls; another program is an error.
    cwd: the folder that the commands are run in.
  """
  done = tools.bash(script(page), cwd=cwd)
  assert done.returncode == 0, done.stderr
  return [call.argv for call in tools.calls]


def of_resjax(words: list[str]) -> tuple[str, list[str]] | None:
  """Returns the command and the arguments of a call of resjax, None for another program."""
  if words[0] in ("python", "python3") and words[1:2] == ["-m"] and len(words) > 2:
    module, *arguments = words[2:]
    words = module.replace("launch.", "resjax ").split() + arguments
  if words[0] != "resjax" or words[1:2] == [] or words[1] not in COMMANDS:
    return None  # the help of all is none of them
  return words[1], words[2:]


def run(
  name: str, arguments: list[str], *more: str, cwd: pathlib.Path = ROOT, **variables: str
) -> tuple[int, str]:
  """Runs a command of resjax in its cheap form; returns its exit code and what it printed.

  Args:
    name: the command, such as train.
    arguments: its arguments.
    more: further flags that make it cheap.
    cwd: the folder that it runs in.
    **variables: its environment besides that of this process.
  """
  end = arguments.index("--") if "--" in arguments else len(arguments)
  cheap = [*(("--dry_run",) if name in DRY else ()), *more]
  arguments = [*arguments[:end], *cheap, *arguments[end:]]
  environment = runs.environment(PYTHONPATH=ROOT, **variables)
  return forks.run(name, arguments, cwd, environment)
