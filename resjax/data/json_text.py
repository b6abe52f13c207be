"""JSON in bounded memory: values one after another, such as JSON lines, or elements of arrays."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any

_CHUNK = 1 << 18  # bytes that are read at a time
# A byte order mark stands between values where files were joined.
_SPACE = re.compile("[ \t\r\n\ufeff]*")
_DECODER = json.JSONDecoder()
_LONGEST = 16  # characters of the longest name of a value, or of an escape in a text


class NotJsonError(ValueError):
  """A value is not JSON that can be read."""


def values(file: IO[bytes], shown: str, most: int, too_long: str) -> Iterator[tuple[str, Any]]:
  """Yields the values of a file, and of arrays the values in them, one at a time.

  Values may follow each other with or without white space, also line breaks, between and in them.

  Args:
    file: the bytes of UTF-8 text.
    shown: the name of the file, for messages.
    most: the largest number of characters of a value.
    too_long: what is said of a longer one, behind its place.

  Yields:
    Where a value stands: its line, and of an array its number, as in `:7` and `:7[0]`; and what
    `json.loads` makes of it.

  Raises:
    NotJsonError: A value is not JSON, not UTF-8, or has more levels or digits than Python reads.
    ValueError: A value is too long.
  """
  text = _Text(file, shown, most, too_long)
  while first := text.peek():
    if first == "[":
      yield from text.array()
    else:
      place = f":{text.line}"
      yield place, text.value(place)


class _Text:
  """The characters of a file from some position on, read on demand.

  Attributes:
    line: the line number of that position, from 1.
  """

  def __init__(self, file: IO[bytes], shown: str, most: int, too_long: str):
    self.line = 1
    self._file, self._shown, self._most, self._too_long = file, shown, most, too_long
    self._decoder = codecs.getincrementaldecoder("utf-8")()
    self._text, self._at, self._ended = "", 0, False

  def peek(self) -> str:
    """Goes to the next character that is no white space; returns it, at the end nothing."""
    while True:
      found = _SPACE.match(self._text, self._at)
      assert found is not None  # it matches nothing, too
      self._advance(found.end())
      if self._at < len(self._text):
        return self._text[self._at]
      if not self._more():
        return ""

  def array(self) -> Iterator[tuple[str, Any]]:
    """Yields the values of the array that begins here, and goes behind it."""
    self._advance(self._at + 1)
    number = 0
    if self.peek() == "]":
      self._advance(self._at + 1)
      return
    while True:
      self.peek()
      place = f":{self.line}[{number}]"
      yield place, self.value(place)
      if (following := self.peek()) not in (",", "]"):
        raise NotJsonError(f"{self._shown}{place} is not JSON: no comma or ] follows it")
      self._advance(self._at + 1)
      if following == "]":
        return
      number += 1

  def value(self, place: str) -> Any:
    """Returns the value that begins here, and goes behind it."""
    at = f"{self._shown}{place}"
    while True:
      try:
        found, end = _DECODER.raw_decode(self._text, self._at)
      except json.JSONDecodeError as error:
        if len(self._text) - self._at > self._most:
          raise ValueError(f"{at} {self._too_long}") from None
        cut = error.pos > len(self._text) - _LONGEST or error.msg.startswith("Unterminated")
        if not (cut and self._more()):
          raise NotJsonError(f"{at} is not JSON: {error.msg}") from None
      except RecursionError:
        raise NotJsonError(f"{at} is nested too deeply") from None
      except ValueError:  # Python converts no text of more than some thousand digits.
        raise NotJsonError(f"{at} has a number with too many digits") from None
      else:
        if end - self._at > self._most:
          raise ValueError(f"{at} {self._too_long}")
        self._advance(end)
        return found

  def _advance(self, end: int) -> None:
    self.line += self._text.count("\n", self._at, end)
    self._at = end

  def _more(self) -> bool:
    """Reads on, about as much as is there already; returns whether there was anything."""
    left = self._text[self._at :]
    try:
      some = self._file.read(min(max(_CHUNK, len(left)), max(self._most + 1 - len(left), 1)))
      new = self._decoder.decode(some, final=not some)
    except UnicodeDecodeError as error:
      line = self.line + left.count("\n") + error.object.count(b"\n", 0, error.start)
      what = f"{error.encoding.upper()} text, so not JSON: {error.reason} in line {line}"
      raise NotJsonError(f"{self._shown} is not {what}") from None
    self._text, self._at = left + new, 0
    return bool(some)
