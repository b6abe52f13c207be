"""Strategies that damage valid files: by their structure, not by noise alone."""

import dataclasses
import json
import math
import struct
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

# `{victim}` becomes the absolute path of a folder that no command may touch.
HOSTILE_NAMES = (
  "", ".", "..", "../victim", "../../victim", "a/../../victim", "{victim}", "{victim}/kept.txt",
  "/dev/zero", "/proc/version", "~", "a\0b", "..\\victim", "file:///proc/version", "gs://nobody/x",
  "../victim/missing", "../victim/inner",
)  # fmt: skip
HOSTILE_TEXT = (
  "", " ", "x", "0", "-1", "nan", "None", "é" * 40, "\u202etxt", "\x1b[31mred", "a\nb", "[/x]",
  "$a_{$", "{}", "%s%n", "x" * 70_000, "\ufffe", "𝕏", "'; touch x; '",
)  # fmt: skip
HOSTILE_NUMBERS = (
  0, -1, 1, 2, 3, 7, 2**31, 2**63, -(2**63) - 1, 10**9, 10**30, 0.5, -0.5, 1e-300, 1e300,
  math.inf, -math.inf, math.nan,
)  # fmt: skip
_OTHER_TYPES = (None, True, False, [], {}, [1], {"a": 1}, "x", 1, 1.5)
_ON_BYTES = (
  "cut", "cut", "flip", "flip", "zero", "empty", "garbage", "insert", "swap", "utf-16", "twice",
)  # fmt: skip
_DEEP = 100_000  # levels of nesting


@dataclasses.dataclass(frozen=True)
class Mutation:
  """A damaged file.

  Attributes:
    content: its bytes.
    what: says in words what was done.
    path: the key that was changed, with dots between its parts; empty if the whole file was.
    plausible: whether another valid file may look like this one: every value that differs has the
      same type and a usual size, or a key is missing or new.
  """

  content: bytes
  what: str
  path: str = ""
  plausible: bool = False

  @property
  def key(self) -> str:
    """The last part of the key that was changed."""
    return self.path.rsplit(".", 1)[-1]


class _Raw(str):
  """A piece of JSON that is written as it is."""


@st.composite
def of_json(draw: st.DrawFn, original: Any, prefer: tuple[str, ...] = ()) -> Mutation:
  """Draws a mutation of a JSON value.

  Args:
    draw: what hypothesis draws with.
    original: the value.
    prefer: keys which, or in which something, is changed in half of the cases.
  """
  if draw(st.integers(0, 4)) == 0:
    return draw(of_bytes(json.dumps(original, indent=1).encode()))
  places = list(_places(original))
  liked = [place for place in places if {*place} & {*prefer}]
  place = draw(st.sampled_from(liked if liked and draw(st.booleans()) else places))
  action = draw(
    st.sampled_from(["type", "number", "name", "text", "drop", "rename", "add", "deep"])
  )
  copy = json.loads(json.dumps(original))
  parent = _at(copy, place[:-1]) if place else None
  if action == "drop" and place:
    del parent[place[-1]]
  elif action == "rename" and isinstance(parent, dict):
    parent[place[-1] + "_"] = parent.pop(place[-1])
  elif action == "add" and isinstance(_at(copy, place), dict):
    _at(copy, place)[draw(st.sampled_from(["new_key", "", "__class__", "..", "é"]))] = 1
  else:
    new = draw(_value(action))
    if place:
      parent[place[-1]] = new
    else:
      copy = new
  text = _dump(copy)
  shown = json.dumps(_at(copy, place), default=str)[:60] if action not in ("drop", "rename") else ""
  path = ".".join(map(str, place))
  what = f"{action} {path or 'the value'} {shown}".strip()
  return Mutation(text, what, path, similar(original, text))


def _value(action: str) -> st.SearchStrategy:
  match action:
    case "number":
      return st.sampled_from(HOSTILE_NUMBERS)
    case "name":
      return st.sampled_from(HOSTILE_NAMES)
    case "text":
      return st.one_of(st.sampled_from(HOSTILE_TEXT), st.just(_Raw('"\\ud800"')))
    case "deep":
      deep = [_Raw("[" * _DEEP + "]" * _DEEP), _Raw('{"a":' * 2000 + "1" + "}" * 2000)]
      return st.sampled_from([*deep, _Raw("1" * 5000), _Raw("1e999"), _Raw("[[[]]]")])
    case _:
      return st.sampled_from(_OTHER_TYPES)


@st.composite
def of_bytes(draw: st.DrawFn, original: bytes) -> Mutation:
  """Draws a mutation of a file that knows nothing of its format."""
  at = draw(st.integers(0, max(len(original) - 1, 0)))
  action = draw(
    st.sampled_from(
      [
        "cut",
        "cut",
        "flip",
        "flip",
        "zero",
        "empty",
        "garbage",
        "insert",
        "swap",
        "utf-16",
        "twice",
      ]
    )
  )
  match action:
    case "cut":
      content = original[:at]
    case "flip":
      bit = 1 << draw(st.integers(0, 7))
      content = original[:at] + bytes([original[at] ^ bit]) + original[at + 1 :]
    case "zero":
      content = original[:at] + bytes(min(64, len(original) - at)) + original[at + 64 :]
    case "empty":
      content = b""
    case "garbage":
      content = draw(st.binary(min_size=1, max_size=200))
    case "insert":
      piece = draw(st.sampled_from([b"\xff", b"\0", b"\xef\xbb\xbf", b"}", b'"', b"\n", b"\xc3("]))
      content = original[:at] + piece + original[at:]
    case "swap":
      content = original[at:] + original[:at]
    case "utf-16":
      content = original.decode("latin-1").encode("utf-16")
    case _:
      content = original + original
  return Mutation(content, f"{action} at byte {at} of {len(original)}")


@st.composite
def of_safetensors(draw: st.DrawFn, original: bytes) -> Mutation:
  """Draws a mutation of a safetensors file, most often of its header."""
  (length,) = struct.unpack("<Q", original[:8])
  header, data = json.loads(original[8 : 8 + length]), original[8 + length :]
  match draw(st.sampled_from(["header", "header", "header", "length", "data", "bytes"])):
    case "length":
      new = draw(st.sampled_from([0, 1, length - 1, length + 1, 2**31, 2**63 - 1, 2**64 - 1]))
      return Mutation(struct.pack("<Q", new) + original[8:], f"header length {new}")
    case "data":
      content = data[: draw(st.integers(0, len(data)))] + bytes(draw(st.sampled_from([0, 1, 8])))
      return Mutation(original[: 8 + length] + content, f"{len(content)} bytes of data")
    case "bytes":
      changed = draw(of_bytes(original))
      other = len(changed.content) == len(original)  # other values, and there is no checksum
      return dataclasses.replace(changed, plausible=other)
  changed = draw(of_json(header, prefer=("shape", "dtype", "data_offsets")))
  content = struct.pack("<Q", len(changed.content)) + changed.content + data
  return dataclasses.replace(changed, content=content, what=f"header: {changed.what}")


def similar(original: Any, text: bytes) -> bool:
  """Returns whether a text is JSON whose values have the types of the original and usual sizes."""
  try:
    return _alike(original, json.loads(text))
  except (ValueError, RecursionError):
    return False


def _alike(one: Any, other: Any) -> bool:
  if isinstance(one, dict) and isinstance(other, dict):
    return all(_alike(one[key], other[key]) for key in {*one} & {*other})
  if isinstance(one, list) and isinstance(other, list):
    return len(one) == len(other) and all(map(_alike, one, other))
  if isinstance(one, bool) or isinstance(other, bool) or not isinstance(one, int | float):
    return type(one) is type(other)
  if not isinstance(other, int | float) or not math.isfinite(other):
    return False
  return one == other or (other >= 0 and (isinstance(one, float) or isinstance(other, int)))


def _places(value: Any, place: tuple = ()) -> Iterator[tuple]:
  yield place
  items = value.items() if isinstance(value, dict) else ()
  items = enumerate(value[:8]) if isinstance(value, list) else items
  for key, inner in items:
    yield from _places(inner, (*place, key))


def _at(value: Any, place: tuple) -> Any:
  for key in place:
    value = value[key]
  return value


def _dump(value: Any) -> bytes:
  """Returns JSON in which the pieces that are `_Raw` stand as they are."""
  pieces: list[str] = []

  def mark(found: Any) -> Any:
    if isinstance(found, _Raw):
      pieces.append(found)
      return f"<raw {len(pieces) - 1}>"
    if isinstance(found, dict):
      return {key: mark(inner) for key, inner in found.items()}
    return [mark(inner) for inner in found] if isinstance(found, list) else found

  text = json.dumps(mark(value), indent=1)
  for number, piece in enumerate(pieces):
    text = text.replace(f'"<raw {number}>"', piece)
  return text.encode()
