"""How often a step runs each computation of a compiled program: calls, and trips of loops."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping

from resjax.aot.hlo import Computation, Instruction, Module, search

_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_MAX_TRIPS = 100_000


@dataclasses.dataclass(frozen=True)
class ComputationCall:
  """A computation at one of the places that call it.

  Attributes:
    computation: what is called.
    times: how often a step runs it from there; a branch of a conditional counts as taken every
      time.
    fused: whether it is part of a fusion.
  """

  computation: Computation
  times: int
  fused: bool


def calls(module: Module) -> Iterator[ComputationCall]:
  """Yields every computation once for each place that calls it, from the entry on."""
  yield from _calls(module, module.entry, 1, False)


def unknown_loops(module: Module) -> list[str]:
  """Returns the names of the loops whose trips could not be read; their bodies count once."""
  return [
    loop.name
    for computation in module.computations.values()
    for loop in computation.instructions.values()
    if loop.opcode == "while" and trip_count(module, computation, loop) is None
  ]


def _calls(module: Module, name: str, times: int, fused: bool) -> Iterator[ComputationCall]:
  computation = module.computations[name]
  yield ComputationCall(computation, times, fused)
  for line in computation.instructions.values():
    if line.opcode in ("async-update", "async-done"):
      continue  # they name the computation that their `async-start` has called
    trips = trip_count(module, computation, line) if line.opcode == "while" else 1
    inside = fused or line.opcode == "fusion"
    for names in line.called.values():
      for called in names:
        yield from _calls(module, called, times * (1 if trips is None else trips), inside)


def trip_count(module: Module, outside: Computation, loop: Instruction) -> int | None:
  """Returns how often a loop runs its body, None if that cannot be read from the program.

  The compilers for CPUs and GPUs note it. The compiler for TPUs does not; there the integers that
  the condition depends on are computed trip by trip, until the condition is false.
  """
  noted = _TRIPS.search(loop.attributes)
  if noted:
    return int(noted[1])
  condition, body = (module.computations[loop.called[key][0]] for key in ("condition", "body"))
  initial = _Scalars(module, outside, lambda index: None)
  state: dict[int, int | None] = {}

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
  """Computes integers of a computation; those that depend on data are None.

  Args:
    module: the program.
    computation: the computation that the integers belong to.
    parameter: a function of an index. It returns that element of the tuple that the computation is
      given, or that parameter where it is given several.
  """

  def __init__(
    self, module: Module, computation: Computation, parameter: Callable[[int], int | None]
  ):
    self._module, self._lines, self._parameter = module, computation.instructions, parameter

  def element(self, name: str, index: int) -> int | None:
    """Returns element `index` of the tuple that an instruction results in."""
    line = self._lines[name]
    if line.opcode == "tuple":
      return self.value(line.operands[index])
    if line.opcode == "parameter":
      return self._parameter(index)
    return self.element(line.operands[0], index) if line.opcode in _SAME else None

  def value(self, name: str) -> int | None:
    """Returns the scalar that an instruction results in."""
    line = self._lines[name]
    if line.opcode == "constant":
      return _integer(line.operands[0])
    if line.opcode == "parameter":
      return self._parameter(int(line.operands[0]))
    if line.opcode == "get-tuple-element":
      return self.element(line.operands[0], int(search(r"index=(\d+)", line.attributes)[1]))
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
