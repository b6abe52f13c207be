"""The list of faults, and how one of them is put into a file."""

import ast
import dataclasses
import fnmatch
import io
import tokenize
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclasses.dataclass(frozen=True)
class Fault:
  """One changed line that a developer could write by mistake.

  Attributes:
    name: FOLDER/NAME, the name of the list and its own.
    file: the file to change, relative to the root of the checkout.
    old: the code of the one line to change, without indentation and comment.
    new: the code that takes its place.
    breaks: one sentence about what goes wrong.
    tests: test files or folders to try first, relative to the root.
    select: which of their tests, as an expression of pytest's option -k; empty: all.
  """

  name: str
  file: str
  old: str
  new: str
  breaks: str
  tests: tuple[str, ...]
  select: str = ""


def load(folder: Path = HERE) -> list[Fault]:
  """Returns the faults of all lists in a folder, `*.toml`."""
  faults = []
  for path in sorted(folder.glob("*.toml")):
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]:
      fields = entry | {"name": f"{path.stem}/{entry['name']}", "tests": tuple(entry["tests"])}
      faults.append(Fault(**fields))
  return faults


def choose(faults: Sequence[Fault], patterns: Sequence[str]) -> list[Fault]:
  """Returns the faults whose name, with or without its folder, matches one of the patterns.

  Raises:
    ValueError: a pattern matches no fault.
  """
  chosen = []
  for pattern in patterns:
    found = [
      fault
      for fault in faults
      if fnmatch.fnmatch(fault.name, pattern) or fnmatch.fnmatch(Path(fault.name).name, pattern)
    ]
    if not found:
      raise ValueError(f"--only={pattern} matches no fault; --list shows their names")
    chosen += found
  return [fault for fault in faults if fault in chosen] if patterns else list(faults)


def apply(fault: Fault, root: Path) -> str:
  """Returns the text of the fault's file with the line changed.

  A line is compared by its code: indentation and a comment behind it do not matter, and both stay.

  Args:
    fault: what to change.
    root: the checkout that holds the file.

  Raises:
    ValueError: the file is missing, the line is there never or several times, or what the change
      leaves is no Python.
  """
  path = root / fault.file
  if not path.is_file():
    raise ValueError(f"{fault.name}: {fault.file} is missing")
  lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
  codes = _codes(lines) if path.suffix == ".py" else [line.strip() for line in lines]
  places = [number for number, code in enumerate(codes) if code == fault.old]
  if len(places) != 1:
    raise ValueError(f"{fault.name}: {fault.file} has the line {len(places)} times: {fault.old}")
  (place,) = places
  lines[place] = lines[place].replace(fault.old, fault.new, 1)
  text = "".join(lines)
  if path.suffix == ".py":
    try:
      ast.parse(text)
    except SyntaxError as error:
      raise ValueError(f"{fault.name}: {fault.file} is no Python afterwards: {error}") from None
  return text


def _codes(lines: Sequence[str]) -> list[str]:
  """Returns the lines of a Python file without indentation, comments and what ends them."""
  codes = list(lines)
  for token in tokenize.generate_tokens(io.StringIO("".join(lines)).readline):
    if token.type == tokenize.COMMENT:
      row, column = token.start
      codes[row - 1] = codes[row - 1][:column]
  return [code.strip() for code in codes]


def problems(faults: Iterable[Fault], root: Path = ROOT) -> list[str]:
  """Returns what is wrong with faults: a line for each that cannot be applied to a checkout."""
  found, names = [], set()
  for fault in faults:
    if fault.name in names:
      found.append(f"{fault.name}: two faults have this name")
    names.add(fault.name)
    if fault.old == fault.new or "\n" in fault.old + fault.new:
      found.append(f"{fault.name}: `old` and `new` must be two different lines")
    found += [
      f"{fault.name}: {test} is missing" for test in fault.tests if not (root / test).exists()
    ]
    try:
      apply(fault, root)
    except ValueError as error:
      found.append(str(error))
  return found
