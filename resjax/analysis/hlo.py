"""Compiled programs as text (HLO): their instructions, and how often a step runs each of them."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_NAME = re.compile(r"  (ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")
_CALLED = re.compile(
  r"(body|condition|calls|to_apply|(?:branch|true|false|called)_computations?)="
  r"(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_MAX_TRIPS = 1_000_000


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
class Visit:
  """A computation as it is reached from the entry.

  Attributes:
    computation: its instructions.
    times: how often a step runs it; a branch of a conditional counts as taken every time.
    fused: it is part of a fusion.
  """

  computation: Computation
  times: int
  fused: bool


@dataclasses.dataclass(frozen=True)
class Module:
  """A compiled program.

  Attributes:
    computations: by name.
    entry: name of the one that a call of the program runs.
  """

  computations: Mapping[str, Computation]
  entry: str

  def visits(self) -> Iterator[Visit]:
    """Yields every computation each time that another one calls it; loops know their trips."""
    yield from self._visits(self.entry, 1, False)

  def unknown_loops(self) -> list[str]:
    """Returns the loops whose trips could not be read; they count as one."""
    return [
      loop.name
      for computation in self.computations.values()
      for loop in computation.instructions.values()
      if loop.opcode == "while" and trip_count(self, computation, loop) is None
    ]

  def _visits(self, name: str, times: int, fused: bool) -> Iterator[Visit]:
    computation = self.computations[name]
    yield Visit(computation, times, fused)
    for instruction in computation.instructions.values():
      trips = 1
      if instruction.opcode == "while":
        trips = trip_count(self, computation, instruction)
        trips = 1 if trips is None else trips
      if instruction.opcode in ("async-update", "async-done"):
        continue  # of what their `async-start` calls
      inside = fused or instruction.opcode == "fusion"
      for names in instruction.called.values():
        for called in names:
          yield from self._visits(called, times * trips, inside)


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


def trip_count(module: Module, outside: Computation, loop: Instruction) -> int | None:
  """Returns how often a loop runs its body, None if that cannot be read from the program.

  Compilers for CPU and GPU note it; that for TPUs does not, so the integers that the condition
  depends on are computed step by step.
  """
  noted = _TRIPS.search(loop.attributes)
  if noted:
    return int(noted[1])
  condition, body = (module.computations[loop.called[key][0]] for key in ("condition", "body"))
  initial = _Scalars(module, outside, lambda index: None)
  state = {}

  def before(index: int) -> int | None:
    if index not in state:
      state[index] = initial.element(loop.operands[0], index)
    return state[index]

  for trips in range(_MAX_TRIPS):
    goes_on = _Scalars(module, condition, before).value(condition.root)
    if goes_on is None:
      return None
    if not goes_on:
      return trips
    step = _Scalars(module, body, before)
    known = -1
    while len(state) > known:  # computing an element may ask for others
      known = len(state)
      after = {index: step.element(body.root, index) for index in list(state)}
    state = after
  return None


_BINARY: Mapping[str, Callable[[int, int], int]] = {
  "add": lambda a, b: a + b,
  "subtract": lambda a, b: a - b,
  "multiply": lambda a, b: a * b,
  "and": lambda a, b: a & b,
  "or": lambda a, b: a | b,
  "minimum": min,
  "maximum": max,
}
_COMPARE: Mapping[str, Callable[[int, int], bool]] = {
  "LT": lambda a, b: a < b,
  "LE": lambda a, b: a <= b,
  "GT": lambda a, b: a > b,
  "GE": lambda a, b: a >= b,
  "EQ": lambda a, b: a == b,
  "NE": lambda a, b: a != b,
}
_SAME = ("copy", "bitcast", "convert", "copy-start", "copy-done", "reshape")


class _Scalars:
  """Computes integers of a computation, None where they depend on data.

  Args:
    module: the program.
    computation: where they are.
    parameter: index -> element of the tuple that the computation is given, or its parameter.
  """

  def __init__(
    self, module: Module, computation: Computation, parameter: Callable[[int], int | None]
  ):
    self._module, self._lines, self._parameter = module, computation.instructions, parameter

  def element(self, name: str, index: int) -> int | None:
    """Returns an element of a tuple."""
    line = self._lines[name]
    if line.opcode == "tuple":
      return self.value(line.operands[index])
    if line.opcode == "parameter":
      return self._parameter(index)
    return self.element(line.operands[0], index) if line.opcode in _SAME else None

  def value(self, name: str) -> int | None:
    """Returns a scalar."""
    line = self._lines[name]
    if line.opcode == "constant":
      return _integer(line.operands[0])
    if line.opcode == "parameter":
      return self._parameter(int(line.operands[0]))
    if line.opcode == "get-tuple-element":
      return self.element(line.operands[0], int(re.search(r"index=(\d+)", line.attributes)[1]))
    if line.opcode in _SAME:
      return self.value(line.operands[0])
    if line.opcode == "fusion":
      inside = self._module.computations[line.called["calls"][0]]
      given = _Scalars(self._module, inside, lambda index: self.value(line.operands[index]))
      return given.value(inside.root)
    return self._binary(line)

  def _binary(self, line: Instruction) -> int | None:
    direction = re.search(r"direction=(\w+)", line.attributes)
    function = _COMPARE[direction[1]] if direction else _BINARY.get(line.opcode)
    if function is None:
      return None
    a, b = (self.value(operand) for operand in line.operands)
    return None if a is None or b is None else int(function(a, b))


def _integer(text: str) -> int | None:
  text = {"true": "1", "false": "0"}.get(text, text)
  return int(text) if re.fullmatch(r"-?\d+", text) else None
