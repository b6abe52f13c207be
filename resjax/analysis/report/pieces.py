"""Tokens as a reader can see them: whitespace, bytes that are no text, marks that stand alone."""

import re
import unicodedata

_NAMES = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}
_LONG_RUN = 4


def visible(piece: bytes) -> str:
  """Returns what a token stands for, every character of it in sight.

  Spaces are ␣, ends of lines ↵, tabs ⇥; runs of more than four are counted (␣×8). Bytes that are no
  UTF-8, control and format characters are escaped (\\xe2, \\u200b); a combining mark that begins
  the token stands on ◌. Nothing at all is ∅.

  Args:
    piece: the bytes that the token stands for.
  """
  text = piece.decode("utf-8", errors="backslashreplace")
  text = re.sub(rf"(\s)\1{{{_LONG_RUN},}}", lambda run: f"{run[1]}×{len(run[0])}", text)
  shown = "".join(map(_character, text))
  return ("◌" * _is_mark(text) + shown) or "∅"


def _is_mark(text: str) -> bool:
  return text != "" and unicodedata.category(text[0]).startswith("M")


def _character(character: str) -> str:
  if character in _NAMES:
    return _NAMES[character]
  # Other separators, control, format, surrogates, private use, unassigned.
  if character != " " and unicodedata.category(character)[0] in "ZC":
    return character.encode("unicode_escape").decode("ascii")
  return character
