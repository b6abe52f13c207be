"""What `--help` prints: the documentation of a command and its flags, as wide as the terminal."""

import re
import shutil
import sys
import textwrap

from absl import flags

_LEAST, _MOST = 40, 100  # columns; documentation is written for the latter
_SETTINGS = (
  "  --config.KEY=VALUE\n      Another value of a setting; see configs/base.py. The options of a\n"
  "      residual system are its class's: python -m pydoc resjax.combinators.Gate\n"
  "  --workdir=DIR\n      The same as --config.workdir=DIR."
)
# Modules whose flags several commands have -> the title of their group.
_SHARED = {
  "resjax.cli.model_flags": "models",
  "resjax.cli.text_flags": "text",
  "resjax.cli.outside": "combinators of other packages",
  "resjax.cli.command": "every command",
}


def of_command(documentation: str) -> str:
  """Returns the help text of a command: its documentation, its own flags, and those it shares."""
  groups: dict[str, list[str]] = {title: [] for title in ("flags", *_SHARED.values())}
  if "config" in flags.FLAGS:
    groups["flags"] += [_flag(flags.FLAGS["config"]), _SETTINGS]
  for module, found in flags.FLAGS.flags_by_module_dict().items():
    if module == sys.argv[0] or module.startswith(("launch.", "resjax.cli.")):
      texts = [_flag(flag) for flag in found if flag.name != "config"]
      groups[_SHARED.get(module, "flags")] += texts
  titled = ["\n".join([f"{title}:", *texts]) for title, texts in groups.items() if texts]
  return "\n\n".join([fitted(documentation.strip()), *titled])


def fitted(text: str) -> str:
  """Returns a text whose lines are no wider than the terminal.

  Paragraphs are filled anew. Lines that begin with a space keep their beginnings: commands are
  continued before a flag, and rows of lists below their last column.
  """
  lines: list[str] = []
  for block in re.findall(r"(?:^[^ \n].*\n?)+|^.*\n?", text, re.MULTILINE):
    block = block.removesuffix("\n")
    if block[:1] in ("", " "):
      lines += [block] if len(block) <= _width() else _row(block)
    else:
      lines += textwrap.wrap(block, _width(), break_long_words=False, break_on_hyphens=False)
  return "\n".join(lines).rstrip("\n")


def _width() -> int:
  return min(max(shutil.get_terminal_size().columns, _LEAST), _MOST)


def _row(line: str) -> list[str]:
  """Returns the lines of an indented one that is too long."""
  text, note = line, ""
  if line.lstrip().startswith(("python ", "resjax ")):
    if found := re.fullmatch(r"(.*?\S)  +(\(.*\))", line):
      text, note = found[1], found[2]
    more = [f"      {note}"] * bool(note)
    return [*_command(text), *more] if len(f"{text}  {note}") > _width() else [f"{text}  {note}"]
  column = max((found.end() for found in re.finditer(r"(?:^|\S) {2,}(?=\S)", line)), default=4)
  return textwrap.wrap(
    line, _width(), subsequent_indent=" " * column, break_long_words=False, break_on_hyphens=False
  )


def _command(line: str) -> list[str]:
  """Returns a command whose lines end before a flag."""
  first, *words = re.split(r" (?=-)", line)
  lines = [first]
  for word in words:
    if len(f"{lines[-1]} {word} \\") <= _width():
      lines[-1] += f" {word}"
    else:
      lines[-1] += " \\"
      lines.append(f"    {word}")
  return lines


def _flag(flag: flags.Flag) -> str:
  default = "" if flag.default in (None, [], [""]) else (flag.default_as_str or "").strip("'")
  name = f"[no]{flag.name}" if flag.boolean else f"{flag.name}={default}"
  usual = f" (default: {default})" if flag.boolean and flag.default else ""
  text = f"      {' '.join((flag.help or '').split()).replace('.;', ';')}{usual}"
  return "\n".join([f"  --{name}", *(_row(text) if len(text) > _width() else [text])])
