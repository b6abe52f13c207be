"""How often a step runs each computation of a compiled program: calls, and trips of loops."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping

from resjax.aot.hlo import Computation, Instruction, Module

_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_MAX_TRIPS = 100_000


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


def visits(module: Module) -> Iterator[Visit]:
  """Yields every computation each time that another one calls it; loops know their trips."""
  yield from _visits(module, module.entry, 1, False)


def unknown_loops(module: Module) -> list[str]:
  """Returns the loops whose trips could not be read; they count as one."""
  return [
    loop.name
    for computation in module.computations.values()
    for loop in computation.instructions.values()
    if loop.opcode == "while" and trip_count(module, computation, loop) is None
  ]


def _visits(module: Module, name: str, times: int, fused: bool) -> Iterator[Visit]:
  computation = module.computations[name]
  yield Visit(computation, times, fused)
  for line in computation.instructions.values():
    if line.opcode in ("async-update", "async-done"):
      continue  # of what their `async-start` calls
    trips = trip_count(module, computation, line) if line.opcode == "while" else 1
    inside = fused or line.opcode == "fusion"
    for names in line.called.values():
      for called in names:
        yield from _visits(module, called, times * (1 if trips is None else trips), inside)


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
