"""Reads JSON from any source into typed values, with errors of one line.

`msgspec` compares a text with a type: a dataclass, `dict[str, int]`, `int | None`, or
`Annotated[int, msgspec.Meta(ge=1)]` for a range. Keys that a dataclass does not have are ignored.
"""

import bisect
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from resjax.base import locations
from resjax.base.locations import Location
from resjax.base.ranges import shown

MOST_BYTES = 64 << 20  # of a file, unless its reader allows more

S = TypeVar("S")
T = TypeVar("T")


def read(place: Location, kind: type[T], *, most_bytes: int = MOST_BYTES) -> T:
  """Returns the value that a JSON file holds.

  Args:
    place: the file.
    kind: the type of the value, as `msgspec` understands it.
    most_bytes: the largest size of the file.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the place is no regular file, the file is larger, or it holds something else; the
      message names the file, the key, what was found and what is allowed.
  """
  return parse(locations.read_bytes(place, most_bytes), kind, str(place))


def parse(text: str | bytes, kind: type[T], where: str) -> T:
  """Returns the value that a JSON text holds; `where` names the text in messages.

  Raises:
    ValueError: see `read`.
  """
  try:
    try:
      return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
      # What is no JSON at all, as a file that was cut, is called that.
      raise ValueError(f"{where}: {_explain(msgspec.json.decode(text), kind, error)}") from None
  except msgspec.DecodeError as error:
    raise ValueError(f"{where} holds no JSON: {error}") from None
  except UnicodeDecodeError:
    raise ValueError(f"{where} holds no JSON: it is no UTF-8") from None
  except UnicodeEncodeError:
    raise ValueError(f"{where} holds no JSON: it has half a surrogate pair") from None
  except RecursionError:
    raise ValueError(f"{where} is nested too deeply") from None


def rebuild(text: str | bytes, kind: type[S], build: Callable[[S], T], where: str) -> T:
  """Parses a JSON text and builds an object from its value.

  Args:
    text: the JSON.
    kind: the type of the value that it holds.
    build: makes the result of that value.
    where: names the text in messages.

  Raises:
    ValueError: see `read`, or `build` raises one.
  """
  stored = parse(text, kind, where)
  try:
    return build(stored)
  except ValueError as error:
    raise ValueError(f"{where}: {error}") from None


def convert(value: Any, kind: type[T], where: str) -> T:
  """Converts a value made of dicts, lists, texts and numbers to a type; see `parse`.

  Raises:
    ValueError: see `read`.
  """
  try:
    return msgspec.convert(value, kind)
  except msgspec.ValidationError as error:
    copy = msgspec.json.decode(msgspec.json.encode(value))
    raise ValueError(f"{where}: {_explain(copy, kind, error)}") from None


def _explain(value: Any, kind: type, error: msgspec.ValidationError) -> str:
  """Returns key, finding and allowed values from an error such as Expected `int` - at `$.rows`.

  The value is changed.
  """
  message = str(error)
  wanted = message.replace("`", "").partition(" - at ")[0]
  try:
    keys, found = _follow(value, kind, message)
  except (LookupError, TypeError):
    return message.replace("`", "")
  what = "" if isinstance(found, dict | list) else f" is {shown(found)}"
  return f"{keys or 'the value'}{what}: {wanted[0].lower()}{wanted[1:]}"


def _follow(value: Any, kind: type, message: str) -> tuple[str, Any]:
  """Returns the full name of the key that a message of `msgspec` is about, and its value."""
  path = message.replace("`", "").partition(" - at ")[2]
  name, found = "", value
  for step in re.findall(r"\[\.\.\.\]|\[\d+\]|[^.\[\]$]+", path):
    if step == "[...]":  # msgspec does not say which key of a dict it is
      key: Any = _wrong_key(value, found, kind, message)
    else:
      key = int(step[1:-1]) if step.startswith("[") else step
    found = found[key]
    name += f"[{key}]" if isinstance(key, int) else f".{key}" if name else str(key)
  return name, found


def _wrong_key(whole: Any, entries: dict[str, Any], kind: type, message: str) -> str:
  """Returns the key of a dict inside a value that a message is about; removes all others."""
  items = list(entries.items())

  def fails(count: int) -> bool:
    entries.clear()
    entries.update(items[:count])
    try:
      msgspec.json.decode(msgspec.json.encode(whole), type=kind)
    except msgspec.ValidationError as error:
      return str(error) == message
    return False

  # A decoder stops at the first mistake, so that all longer beginnings of the dict fail too.
  found = bisect.bisect_left(range(1, len(items) + 1), True, key=fails)
  key, value = items[found]
  entries.clear()  # what else is wrong would be found instead of what is inside of this key
  entries[key] = value
  return key
