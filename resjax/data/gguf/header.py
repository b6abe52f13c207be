"""The header of a GGUF file: its metadata by name, and where each of its tensors lies.

All numbers are little-endian. Behind the magic, the version, and the numbers of tensors and of keys
stand the keys with their values, then for each tensor its name, shape, type and offset, and from a
multiple of the alignment on the tensors themselves. The specification is docs/gguf.md of ggml.

The reader of the library `gguf` makes an array of NumPy of each token: 12 s for 262,144 of them.
"""

import dataclasses
import functools
import math
import mmap
import pathlib
import struct
from typing import Any

import numpy as np

from resjax.base import locations

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9  # types of values
# The dtype of each type of values, those two aside.
_NUMBERS = ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "?", "", "", "u8", "i8", "f8")
_MOST_AXES = 4
_ROWS = 4096  # that are dequantized at a time


@dataclasses.dataclass(frozen=True)
class GgufTensor:
  """A tensor in a file.

  Attributes:
    file: the file.
    name: its name there.
    shape: its shape; the values of the last axis are adjacent.
    kind: the number of its type, as in `gguf.GGMLQuantizationType`.
    start: the offset of its first byte in the file.
    row_bytes: the bytes of one row, which is the last axis.
  """

  file: pathlib.Path
  name: str
  shape: tuple[int, ...]
  kind: int
  start: int
  row_bytes: int

  def read(self, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
    """Returns some rows of the matrix, or all of the vector, as float32."""
    import gguf

    kind = gguf.GGMLQuantizationType(self.kind)
    shape = (math.prod(self.shape[:-1]), self.row_bytes)
    # Mapped anew: if the file stayed mapped, its pages would count as memory of the process.
    packed: np.ndarray = np.memmap(self.file, np.uint8, "r", self.start, shape)
    packed = packed[rows] if len(self.shape) > 1 else packed
    found = np.empty((len(packed), self.shape[-1]), np.float32)
    for first in range(0, len(packed), _ROWS):
      some = slice(first, first + _ROWS)
      found[some] = gguf.dequantize(np.ascontiguousarray(packed[some]), kind)
    return found if len(self.shape) > 1 else found[0]


def read(place: pathlib.Path) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
  """Returns the metadata of a file, which are numbers, texts and lists by name, and its tensors.

  Raises:
    ValueError: it is no GGUF file of a version that is read, it is big-endian, damaged or cut off,
      or it has tensors of a type that the library `gguf` does not dequantize.
  """
  with locations.open_regular(place) as file:
    magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
      raise ValueError(
        f"{place} is no GGUF file: it begins with {magic!r}, not with {_MAGIC!r}; give the folder "
        "of a Hugging Face model, or a GGUF file"
      )
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
      try:
        return _header(_Cursor(content, len(_MAGIC)), place, len(content))
      except (struct.error, OverflowError, UnicodeDecodeError) as error:
        reason = str(error)
      except RecursionError:
        reason = "a list holds lists that are nested too deeply"
      raise ValueError(
        f"{place} is damaged or cut off: its header cannot be read ({reason}); download it again"
      )


class _Cursor:
  """Reads values one behind the other."""

  def __init__(self, content: mmap.mmap, at: int):
    self._content, self.at = content, at

  def bytes(self, size: int) -> bytes:
    if size > len(self._content) - self.at:
      raise struct.error(f"{size:,} bytes are missing at byte {self.at:,}")
    self.at += size
    return self._content[self.at - size : self.at]

  def number(self, code: str) -> Any:
    return struct.unpack("<" + code, self.bytes(struct.calcsize("<" + code)))[0]

  def text(self) -> str:
    return self.bytes(self.number("Q")).decode()

  def value(self, kind: int) -> Any:
    if kind == _STRING:
      return self.text()
    if kind == _ARRAY:
      kind, count = self.number("I"), self.number("Q")
      if kind in (_STRING, _ARRAY):
        return [self.value(kind) for _ in range(count)]
      return self._numbers(kind, count).tolist()
    (found,) = self._numbers(kind, 1)
    # A number in float32 is meant to be the shortest decimal that rounds to it: 1e-06.
    return float(str(found)) if isinstance(found, np.floating) else found.item()

  def _numbers(self, kind: int, count: int) -> np.ndarray:
    if kind >= len(_NUMBERS):
      raise struct.error(f"type {kind} of a value at byte {self.at:,} is unknown")
    dtype = np.dtype(_NUMBERS[kind]).newbyteorder("<")
    return np.frombuffer(self.bytes(count * dtype.itemsize), dtype)


def _header(
  cursor: _Cursor, place: pathlib.Path, size: int
) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
  version = cursor.number("I")
  if version not in _VERSIONS:
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    found = "is big-endian" if swapped in _VERSIONS else f"has version {version} of GGUF"
    raise ValueError(
      f"{place} {found}; little-endian files of the versions {_VERSIONS[0]} and {_VERSIONS[1]} are "
      "read: convert it with gguf-convert-endian of the package gguf, or download another one"
    )
  num_tensors, num_keys = cursor.number("Q"), cursor.number("Q")
  metadata: dict[str, Any] = {}
  for _ in range(num_keys):
    name = cursor.text()
    if name in metadata:
      raise ValueError(f"{place} has {name} twice; download it again")
    metadata[name] = cursor.value(cursor.number("I"))
  places = [_tensor_place(cursor) for _ in range(num_tensors)]
  alignment = metadata.get("general.alignment", 32)
  if not isinstance(alignment, int) or alignment < 1:
    raise ValueError(f"{place}: general.alignment={alignment!r} is no positive integer")
  start = -(-cursor.at // alignment) * alignment
  tensors: dict[str, GgufTensor] = {}
  for name, shape, kind, offset in places:
    tensor = _tensor(place, name, shape, kind, start + offset)
    end = tensor.start + math.prod(shape[:-1]) * tensor.row_bytes
    if end > size:
      raise ValueError(
        f"{place} is cut off: {name} ends at byte {end:,}, the file has {size:,}; download it again"
      )
    if name in tensors:
      raise ValueError(f"{place} has {name} twice; download it again")
    tensors[name] = tensor
  return metadata, tensors


def _tensor_place(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
  """Returns the name of a tensor, its shape, its type, and its offset from the first tensor."""
  name, axes = cursor.text(), cursor.number("I")
  if not 1 <= axes <= _MOST_AXES:
    raise struct.error(f"{name} has {axes} axes")
  shape = tuple(cursor.number("Q") for _ in range(axes))
  return name, shape[::-1], cursor.number("I"), cursor.number("Q")


def _tensor(
  place: pathlib.Path, name: str, shape: tuple[int, ...], kind: int, start: int
) -> GgufTensor:
  """Returns a tensor, or raises ValueError if its type is not dequantized or does not fit."""
  block, size = _block(kind)
  if not block or shape[-1] % block:
    raise ValueError(
      f"{place}: {name} of shape {shape} has type {kind} of ggml, which the package gguf does not "
      "dequantize; give a file of another quantization, such as Q8_0, Q4_K_M or F16"
    )
  return GgufTensor(place, name, shape, kind, start, shape[-1] // block * size)


@functools.cache
def _block(kind: int) -> tuple[int, int]:
  """Returns how many values of a type lie in how many bytes; zeros if they are not dequantized."""
  import gguf

  try:
    number = gguf.GGMLQuantizationType(kind)
    block, size = gguf.GGML_QUANT_SIZES[number]
    gguf.dequantize(np.zeros((1, size), np.uint8), number)
  except (ValueError, KeyError, NotImplementedError):
    return 0, 0
  return block, size
