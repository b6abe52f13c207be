"""Docstrings, which are written as Markdown is, as the reStructuredText that Sphinx expects."""

import itertools
import re

_SECTION = re.compile(r"[A-Z][a-z]+:$")  # such as Args and Raises
_CODE = re.compile(r"`+([^`]*)`+(?=(\w?))")
_MARKS = re.compile(r"(\*|\||(?<=\w)_(?!\w))")  # emphasis, substitutions and references
_IMPORT = re.compile(r"(from [\w.]+ )?import \w")
_STARRED = re.compile(r"\s+\*{1,2}\w+:")  # an argument, whose stars napoleon escapes


def to_rst(app, what, name, obj, options, lines):
  """Makes literal blocks of paragraphs with columns and of examples, and escapes marks in all else.

  Formatters take away the indentation that all lines behind the first have in common: behind an
  import that is not indented, all is an example.

  Args:
    app: Sphinx's application.
    what: the kind of thing that has the docstring.
    name: its full name.
    obj: the thing.
    options: those of the directive.
    lines: the docstring, which is changed in place.
  """
  made, section, example = [], False, False
  depth = 0  # the indentation of the last line of text
  for has_text, group in itertools.groupby(lines, key=lambda line: bool(line.strip())):
    paragraph = list(group)
    if not has_text:
      made += paragraph
      continue
    if paragraph[0].startswith("Source: "):  # whose further lines are indented
      paragraph = [line.strip() for line in paragraph]
    indents = [_indent(line) for line in paragraph]
    section = bool(_SECTION.match(paragraph[0])) or (section and indents[0] > 0)
    has_columns = paragraph[0].lstrip().startswith("|") or (
      not section and max(indents) > indents[0]
    )
    example = example or bool(_IMPORT.match(paragraph[0]))
    if indents[0] > depth or has_columns or example:
      made += [" " * depth + "::", "", *("  " + line for line in paragraph)]
    else:
      made += map(_escaped, paragraph)
      depth = indents[-1]
  lines[:] = made


def _indent(line):
  return len(line) - len(line.lstrip())


def _escaped(line):
  if _STARRED.match(line):
    return line
  made, end = "", 0
  for code in _CODE.finditer(line):
    joint = "\\ " if code[2] else ""  # a word goes on behind it, as in a plural
    made += _MARKS.sub(r"\\\1", line[end : code.start()]) + f"``{code[1].strip()}``" + joint
    end = code.end()
  return made + _MARKS.sub(r"\\\1", line[end:])
