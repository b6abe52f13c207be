"""Compiled programs as text (HLO), read into computations and instructions."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_NAME = re.compile(r"  (ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")
_CALLED = re.compile(
  r"(body|condition|calls|to_apply|(?:branch|true|false|called)_computations?)="
  r"(\{[^}]*\}|%?[\w.\-]+)"
)


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name: without the leading %.
    shape: text such as f32[8,128]{1,0}, or of a tuple.
    opcode: such as all-gather.
    operands: names of what it reads; the number itself for a constant or a parameter.
    attributes: the rest of the line.
  """

  name: str
  shape: str
  opcode: str
  operands: tuple[str, ...]
  attributes: str

  @property
  def arrays(self) -> list[tuple[int, tuple[int, ...]]]:
    """Bits of an element, and sizes, of each array of the result."""
    return arrays(self.shape)

  @property
  def num_bytes(self) -> int:
    """Bytes of the result, all parts of a tuple together."""
    return sum(bits * math.prod(sizes) for bits, sizes in self.arrays) // 8

  @functools.cached_property
  def called(self) -> dict[str, list[str]]:
    """Attribute -> names of the computations that it calls."""
    return {
      key: [name.strip().lstrip("%") for name in names.strip("{}").split(",")]
      for key, names in _CALLED.findall(self.attributes)
    }


@dataclasses.dataclass
class Computation:
  """Instructions by name, in order, and the name of the one that is the result."""

  name: str
  instructions: dict[str, Instruction] = dataclasses.field(default_factory=dict)
  root: str = ""


@dataclasses.dataclass(frozen=True)
class Module:
  """A compiled program.

  Attributes:
    computations: by name.
    entry: name of the one that a call of the program runs.
  """

  computations: Mapping[str, Computation]
  entry: str


def parse(text: str) -> Module:
  """Reads the text of a compiled program, as `Compiled.as_text()` gives it."""
  computations, entry, current = {}, "", None
  for line in _whole_lines(text):
    header = _HEADER.match(line)
    if header:
      current = computations[header[2]] = Computation(header[2])
      entry = header[2] if header[1] else entry
    elif current is not None and (named := _NAME.match(line)):
      instruction = _instruction(named[2], line[named.end() :])
      current.instructions[instruction.name] = instruction
      current.root = instruction.name if named[1] else current.root
  return Module(computations, entry)


def arrays(shape: str) -> list[tuple[int, tuple[int, ...]]]:
  """Bits of an element and sizes of each array in the text of a shape; tokens have none."""
  return [
    (8 if kind == "pred" else int(bits or 0), tuple(int(size) for size in sizes.split(",") if size))
    for kind, bits, sizes in _ARRAY.findall(shape)
  ]


def _whole_lines(text: str) -> Iterator[str]:
  """Yields lines; attributes that hold line breaks are put together again."""
  whole = ""
  for line in text.splitlines():
    if whole and (_NAME.match(line) or _HEADER.match(line) or line == "}"):
      yield whole
      whole = ""
    whole += line
  yield whole


def _instruction(name: str, rest: str) -> Instruction:
  end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
  shape = rest[:end]
  opcode = _OPCODE.match(rest, end)
  start = opcode.end() - 1
  end = _closing(rest, start)
  inside = re.sub(r"/\*.*?\*/", "", rest[start + 1 : end - 1])
  operands = tuple(part.strip().split(" ")[-1].lstrip("%") for part in _split(inside))
  return Instruction(name, shape, opcode[1], operands, rest[end:])


def _closing(text: str, start: int) -> int:
  """Returns where the bracket that opens at `start` has been closed."""
  depth = 0
  for match in re.compile(r"[()]").finditer(text, start):
    depth += 1 if match[0] == "(" else -1
    if depth == 0:
      return match.end()
  raise ValueError(f"unbalanced brackets in HLO: {text[start : start + 80]}")


def _split(text: str) -> list[str]:
  """Splits at the commas outside of brackets."""
  parts, depth, start = [], 0, 0
  for match in re.finditer(r"[(){}\[\],]", text):
    if match[0] == ",":
      if depth == 0:
        parts.append(text[start : match.start()])
        start = match.end()
    else:
      depth += 1 if match[0] in "({[" else -1
  parts.append(text[start:])
  return [part for part in parts if part.strip()]
