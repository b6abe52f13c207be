"""What a case is, and the rules that judge how its command ended."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.fuzz.forks import Done

CLEAN, ACCEPTED = "clean", "accepted"
_SURPLUS = 1 << 30  # bytes of memory above what the same command needs for a valid input
_LONGEST = 1000  # characters of a line that a person reads
_HARMLESS = re.compile(r"(warning|note): ", re.IGNORECASE)

# Says what is wrong with the result of a command that ended well; empty if it is right.
Check = Callable[["Place", Done], str]


def ended_well(place: "Place", done: Done) -> str:
  """Finds nothing wrong: there is nothing that the command could have done otherwise."""
  del place, done
  return ""


def must_refuse(place: "Place", done: Done) -> str:
  """Finds that a command accepted what no command may accept."""
  del place, done
  return "it was accepted"


@dataclasses.dataclass(frozen=True)
class Place:
  """Folders of one case: valid files that it may damage, and victims that nobody may touch.

  Attributes:
    folder: holds `run`, `data`, `hf`, `text` and `victim`; commands run in it.
    outside: another victim, whose absolute path a file may name.
    expected: what commands gave for the valid files, by name.
  """

  folder: Path
  outside: Path
  expected: Mapping[str, bytes]

  def path(self, name: str) -> Path:
    return self.folder / name


@dataclasses.dataclass(frozen=True)
class Case:
  """One command with hostile input.

  Attributes:
    kind: the kind of the input.
    command: the name of the command.
    arguments: the arguments; `{place}` and `{victim}` stand for folders.
    what: says in words what is hostile.
    damage: changes the files of the place.
    names: an error must hold one of these, case ignored; any error will do if there are none.
    right: judges the result where the command accepts the input.
    writes: the names in the place that the command may make or change; all others must stay.
    environment: variables that are added.
  """

  kind: str
  command: str
  arguments: tuple[str, ...]
  what: str
  damage: Callable[[Place], None] = lambda place: None
  names: tuple[str, ...] = ()
  right: Check = ended_well
  writes: tuple[str, ...] = ("out",)
  environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What became of a case: CLEAN, ACCEPTED, or what is wrong, with the line that shows it."""

  word: str
  detail: str = ""

  @property
  def good(self) -> bool:
    return self.word in (CLEAN, ACCEPTED)


def judge(case: Case, place: Place, done: Done, changed: list[str], usual_bytes: int) -> Verdict:
  """Returns the verdict of a case.

  Args:
    case: the case.
    place: its folders after the command.
    done: how the command ended.
    changed: the files that changed although the command may not write them.
    usual_bytes: the memory that the command needs for a valid input.
  """
  text = done.err.decode(errors="replace")
  last = _last_line(text) or _last_line(done.out.decode(errors="replace"))
  if changed:
    return Verdict("changed a victim", ", ".join(changed[:3]))
  if done.stopped == "hang":
    return Verdict("hang", f"{done.seconds:.0f} s; {last}")
  if done.stopped == "memory" or done.peak > usual_bytes + _SURPLUS:
    return Verdict("memory", f"{done.peak >> 20:,} MiB; {last}")
  if done.code < 0:
    return Verdict("signal", f"{-done.code}; {last}")
  if "Traceback (most recent call last)" in text:
    return Verdict("traceback", f"{_location(text)}: {_exception(text)}")
  if done.code == 0:
    wrong = case.right(place, done)
    return Verdict("silently wrong", wrong) if wrong else Verdict(ACCEPTED)
  return _judge_error(case, text, done.code)


def _judge_error(case: Case, text: str, code: int) -> Verdict:
  lines = [line for line in text.split("\n") if line.strip()]
  errors = [line for line in lines if line.startswith("error: ")]
  if not errors:
    return Verdict("no error line", f"exit code {code}; {_last_line(text)}")
  (line, *more) = errors
  if code != 1:
    return Verdict("exit code", f"{code}; {line}")
  others = [other for other in lines if other not in errors and not _HARMLESS.match(other)]
  if more or others:
    return Verdict("several lines", f"{line} | {(more + others)[0]}")
  if "a bug in resjax" in line:
    return Verdict("called a bug", line)
  if len(line) > _LONGEST:
    return Verdict("long line", f"{len(line)} characters; {line[:200]}")
  if not line.replace("\t", " ").isprintable():
    return Verdict("control characters", ascii(line))
  if case.names and not any(name.lower() in line.lower() for name in case.names if name):
    return Verdict("unnamed", f"{line} | expected one of {', '.join(case.names)}")
  return Verdict(CLEAN, line)


def snapshot(folder: Path, without: tuple[str, ...] = ()) -> dict[str, tuple]:
  """Returns what a folder holds: mode, size, time and digest of every file, and where links lead.

  Args:
    folder: the folder.
    without: names directly in it that are left out.
  """
  found = {}
  for root, folders, files in os.walk(os.fsencode(folder)):
    if Path(os.fsdecode(root)) == folder:
      folders[:] = [name for name in folders if os.fsdecode(name) not in without]
      files = [name for name in files if os.fsdecode(name) not in without]
    for name in [*folders, *files]:
      path = os.path.join(root, name)
      at = os.lstat(path)
      content: object = None
      if os.path.islink(path):
        content = os.readlink(path)
      elif os.path.isfile(path) and at.st_size < 1 << 22:
        with open(path, "rb") as file:
          content = hashlib.sha256(file.read()).digest()
      time = None if os.path.isdir(path) else at.st_mtime_ns
      size = None if os.path.isdir(path) else at.st_size
      found[os.path.relpath(path, os.fsencode(folder)).decode(errors="replace")] = (
        at.st_mode, size, time, content,
      )  # fmt: skip
  return found


def differences(before: Mapping[str, tuple], after: Mapping[str, tuple]) -> list[str]:
  """Returns the names of files that are new, missing or other, in order, in words."""
  new = [f"new {name}" for name in after if name not in before]
  gone = [f"gone {name}" for name in before if name not in after]
  other = [f"other {name}" for name in before if name in after and before[name] != after[name]]
  return sorted(gone + other + new)


def _exception(text: str) -> str:
  """Returns the line that names the last exception of a traceback."""
  found = re.findall(r"^[A-Za-z_][\w.]*(?:Error|Exception|Warning|Exit|Interrupt)\b.*", text, re.M)
  return found[-1][:400] if found else _last_line(text)


def _last_line(text: str) -> str:
  lines = [line for line in text.splitlines() if line.strip()]
  return lines[-1][:400] if lines else ""


def _location(text: str) -> str:
  """Returns the last place in this repository that a traceback names."""
  found = re.findall(r'File "[^"]*/((?:resjax|launch|configs)/[^"]+)", line (\d+)', text)
  return ":".join(found[-1]) if found else "elsewhere"
