"""Reads a compiled program from its text (HLO) into computations and instructions."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_NAME = re.compile(r"  (ROOT )?%?([\w.\-]+) = ")
_COMMENT = re.compile(r"/\*.*?\*/")  # the places in long lists
_OPCODE = re.compile(r"^\s*([\w\-]+)\(")
_ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")
_ON_CHIP = re.compile(r"S\([1346]\)")  # of other memories 2 has semaphores, 5 is the host
_CALLED = re.compile(
  r"(body|condition|calls|to_apply|(?:branch|true|false|called)_computations?)="
  r"(\{[^}]*\}|%?[\w.\-]+)"
)


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name: without the leading %.
    shape: the text of the result's shape, such as f32[8,128]{1,0}, or of a tuple of such shapes.
    opcode: the operation, such as all-gather.
    operands: the names of the instructions that it reads; of a constant its value, of a parameter
      its number.
    attributes: the text of the rest of the line.
  """

  name: str
  shape: str
  opcode: str
  operands: tuple[str, ...]
  attributes: str

  @property
  def arrays(self) -> list[tuple[int, tuple[int, ...]]]:
    """For each array of the result the bits of an element, and the sizes of the array."""
    return arrays(self.shape)

  @property
  def num_bytes(self) -> int:
    """The number of bytes of the result, all parts of a tuple together."""
    return sum(bits * math.prod(sizes) for bits, sizes in self.arrays) // 8

  @functools.cached_property
  def called(self) -> dict[str, list[str]]:
    """The names of the computations that it calls, by the attribute that names them."""
    return {
      key: [name.strip().lstrip("%") for name in names.strip("{}").split(",")]
      for key, names in _CALLED.findall(self.attributes)
    }


@dataclasses.dataclass
class Computation:
  """A function of a program.

  Attributes:
    name: without the leading %.
    instructions: the instructions by name, in their order.
    root: the name of the instruction whose result is the computation's.
  """

  name: str
  instructions: dict[str, Instruction] = dataclasses.field(default_factory=dict)
  root: str = ""


@dataclasses.dataclass(frozen=True)
class Module:
  """A compiled program.

  Attributes:
    computations: all computations by name.
    entry: the name of the computation that a call of the program runs.
  """

  computations: Mapping[str, Computation]
  entry: str


def parse(text: str) -> Module:
  """Reads the text of a compiled program, as `resjax.aot.program_text` returns it."""
  computations: dict[str, Computation] = {}
  entry, current = "", None
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


def search(pattern: re.Pattern[str] | str, text: str) -> re.Match[str]:
  """Returns where a pattern first is in a text.

  Raises:
    ValueError: it is nowhere, because the compiler writes HLO that this module does not know.
  """
  found = re.search(pattern, text)
  if found is None:
    raise ValueError(f"HLO of an unknown form: {text[:80]!r} has nothing like {pattern!r}")
  return found


def arrays(shape: str) -> list[tuple[int, tuple[int, ...]]]:
  """Returns the bits of an element and the sizes of each array in the text of a shape."""
  return [
    (8 if kind == "pred" else int(bits or 0), tuple(int(size) for size in sizes.split(",") if size))
    for kind, bits, sizes in _ARRAY.findall(shape)
  ]


def array_shapes(shape: str) -> list[str]:
  """Returns the texts of the shapes of a tuple's elements, or that of the only array."""
  return [part.strip() for part in _split(shape[1:-1])] if shape.startswith("(") else [shape]


def on_chip(shape: str) -> bool:
  """Returns whether a shape's text tells that an array lies in on-chip memory, not in HBM."""
  return _ON_CHIP.search(shape) is not None


def _whole_lines(text: str) -> Iterator[str]:
  """Yields one line for each instruction, some of which have line breaks in their attributes."""
  whole = ""
  for line in text.splitlines():
    if whole and (_NAME.match(line) or _HEADER.match(line) or line == "}"):
      yield whole
      whole = ""
    whole += line
  yield whole


def _instruction(name: str, rest: str) -> Instruction:
  rest = _COMMENT.sub("", rest)
  end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
  shape = rest[:end]
  opcode = search(_OPCODE, rest[end:])
  start = end + opcode.end() - 1
  end = _closing(rest, start)
  inside = rest[start + 1 : end - 1]
  if opcode[1] == "constant":
    return Instruction(name, shape, opcode[1], (inside,), rest[end:])
  operands = tuple(part.strip().split(" ")[-1].lstrip("%") for part in _split(inside))
  return Instruction(name, shape, opcode[1], operands, rest[end:])


def _closing(text: str, start: int) -> int:
  """Returns the position behind the bracket that closes the one at `start`."""
  depth = 0
  for match in re.compile(r"[()]").finditer(text, start):
    depth += 1 if match[0] == "(" else -1
    if depth == 0:
      return match.end()
  raise ValueError(f"unbalanced brackets in HLO: {text[start : start + 80]}")


def _split(text: str) -> list[str]:
  """Splits a text at the commas that are outside of brackets."""
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
