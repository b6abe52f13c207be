"""The flags that the sentences of a page name, and the commands that it names them for.

What a page prints in blocks is run, see doc_commands.
"""

import pathlib
import re

from launch.bench.__main__ import BENCHMARKS
from tests.helpers import doc_commands

_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_FLAG = re.compile(r"^\[?--([a-zA-Z][\w-]*)")
_LINE = re.compile(r"\b(?:resjax|python3? -m [\w.]+)[^\n`]*")
_OPTIONS = re.compile(r"^  (?:-h, )?--(?:\[(no)\])?([a-zA-Z][\w-]*)", re.MULTILINE)


def of_page(page: pathlib.Path) -> list[tuple[str, list[str]]]:
  """Returns the flags of each piece of code in a sentence, behind the command that it begins with.

  The command of flags that stand alone is "". Code that begins otherwise is left out: its flags are
  those of another program.
  """
  found = []
  for code in _CODE.findall(doc_commands.BLOCK.sub("", page.read_text())):
    words = code.split()
    flags = [flag for word in words for flag in _FLAG.findall(word)]
    command = command_of(words)
    if flags and (command or _FLAG.match(words[0])):
      found.append((command, flags))
  return found


def commands_of(page: pathlib.Path) -> set[str]:
  """Returns the commands that a page names anywhere."""
  lines = _LINE.findall(page.read_text())
  return {command for line in lines if (command := command_of(line.split()))}


def command_of(words: list[str]) -> str:
  """Returns what runs the command of a line behind `resjax`; "" for another program."""
  module = words[2] if words[1:2] == ["-m"] and len(words) > 2 else ""
  if module.startswith("tests.") and not module.endswith("_test"):
    return module
  found = doc_commands.of_resjax(words)
  if found is None or found[0] == "completion":  # a part of resjax that has no flags
    return ""
  name, arguments = found
  return " ".join([name, *[one for one in arguments[:1] if one in BENCHMARKS]])


def of_help(text: str) -> set[str]:
  """Returns the flags that a help text lists, those of both spellings that can be negated."""
  found = _OPTIONS.findall(text)
  negated = {f"no{name}" for sign, name in found if sign}
  return {"help", *(name for _, name in found), *negated}
