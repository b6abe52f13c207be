"""Computes the small integers of a compiled program: counters of loops, choices of branches."""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence

from launch.bench.program.hlo import Computation, Instruction, Module, array_shapes, search

_MAX_TRIPS = 100_000
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_BUFFER = 'custom_call_target="AllocateBuffer"'
_MAX_SIZE = 1024  # elements of the largest array that is computed
_INTEGERS = re.compile(r"(?:pred|[su]\d+)\[")

Value = tuple[int, ...] | None  # the elements of an array in their order; None: not known


def _divided(a: int, b: int) -> int:
  """Returns a / b rounded towards zero, as HLO divides."""
  return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0


_BINARY: Mapping[str, Callable[[int, int], int]] = {
  "add": lambda a, b: a + b,
  "subtract": lambda a, b: a - b,
  "multiply": lambda a, b: a * b,
  "divide": _divided,
  "remainder": lambda a, b: a - b * _divided(a, b),
  "and": lambda a, b: a & b,
  "or": lambda a, b: a | b,
  "minimum": min,
  "maximum": max,
}
_UNARY: Mapping[str, Callable[[int], int]] = {
  "abs": abs,
  "negate": lambda a: -a,
  "sign": lambda a: (a > 0) - (a < 0),
}
_COMPARE: Mapping[str, Callable[[int, int], bool]] = {
  "LT": lambda a, b: a < b,
  "LE": lambda a, b: a <= b,
  "GT": lambda a, b: a > b,
  "GE": lambda a, b: a >= b,
  "EQ": lambda a, b: a == b,
  "NE": lambda a, b: a != b,
}
_OF_LOOP = ("condition", "body")
_SAME = frozenset(
  ("copy", "bitcast", "convert", "copy-start", "copy-done", "reshape", "opt-barrier")
)


class Integers:
  """Computes integers of a computation in one of its runs; those that depend on data are None.

  Args:
    module: the program.
    computation: the computation that the integers belong to.
    parameter: a function of an index. It returns that element of the tuple that the computation is
      given, or that parameter where it is given several.
  """

  def __init__(self, module: Module, computation: Computation, parameter: Callable[[int], Value]):
    self.module, self.computation = module, computation
    self._lines, self._parameter = computation.instructions, parameter
    self._known: dict[str, Value] = {}
    self._states: dict[str, list[tuple[Value, ...]] | None] = {}

  def scalar(self, name: str) -> int | None:
    """Returns the number that an instruction results in."""
    value = self.value(name)
    return value[0] if value is not None and len(value) == 1 else None

  def element(self, name: str, index: int) -> Value:
    """Returns element `index` of the tuple that an instruction results in."""
    line = self._lines[name]
    if line.opcode == "tuple":
      return self.value(line.operands[index])
    if line.opcode == "parameter":
      return self._parameter(index)
    if line.opcode == "fusion":
      inside = self._inside(line)
      return inside.element(inside.computation.root, index)
    if line.opcode == "while":
      kept = _kept(self.module.computations[line.called["body"][0]], index)
      if kept is not None:
        return self.element(line.operands[0], kept)
      states = self.states(line) if is_small(array_shapes(line.shape)[index]) else None
      return None if states is None else states[-1][index]
    return self.element(line.operands[0], index) if line.opcode in _SAME else None

  def states(self, loop: Instruction) -> list[tuple[Value, ...]] | None:
    """Returns the integers in the tuple of a loop before each of its trips, and after the last one.

    The compilers for CPUs and GPUs note the number of trips. The compiler for TPUs does not; there
    the condition is computed before every trip, until it is false.

    Returns:
      The tuples, whose other elements are None; None if the number of trips is not known.
    """
    if loop.name not in self._states:
      self._states[loop.name] = self._run_loop(loop)
    return self._states[loop.name]

  def _run_loop(self, loop: Instruction) -> list[tuple[Value, ...]] | None:
    condition, body = (self.module.computations[loop.called[key][0]] for key in _OF_LOOP)
    noted = _TRIPS.search(loop.attributes)
    small = [is_small(shape) for shape in array_shapes(loop.shape)]
    states: list[tuple[Value, ...]] = [
      tuple(
        self.element(loop.operands[0], index) if yes else None for index, yes in enumerate(small)
      )
    ]
    for _ in range(int(noted[1]) if noted else _MAX_TRIPS):
      known = states[-1].__getitem__
      goes_on = True if noted else Integers(self.module, condition, known).scalar(condition.root)
      if goes_on is None:
        return None
      if not goes_on:
        return states
      step = Integers(self.module, body, known)
      states.append(
        tuple(step.element(body.root, index) if yes else None for index, yes in enumerate(small))
      )
    return states if noted else None

  def value(self, name: str) -> Value:
    """Returns the elements of the array that an instruction results in."""
    if name not in self._known:
      line = self._lines[name]
      small = _INTEGERS.match(line.shape) and _size(line) <= _MAX_SIZE
      self._known[name] = self._compute(line) if small else None
    return self._known[name]

  def _compute(self, line: Instruction) -> Value:
    match line.opcode:
      case "constant":
        return _constant(line)
      case "parameter":
        return self._parameter(int(line.operands[0]))
      case "get-tuple-element":
        return self.element(line.operands[0], int(search(r"index=(\d+)", line.attributes)[1]))
      case "copy-done":  # the start of the copy results in a tuple
        return self.value(self._lines[line.operands[0]].operands[0])
      case "iota" if len(line.arrays[0][1]) == 1:
        return tuple(range(_size(line)))
      case "fusion":
        inside = self._inside(line)
        return inside.value(inside.computation.root)
      case "custom-call":  # a buffer holds anything until it is written, zeros as well as others
        return (0,) * _size(line) if _BUFFER in line.attributes else None
    operands = [self.value(operand) for operand in line.operands if operand in self._lines]
    if any(operand is None for operand in operands):
      return None
    return _apply(line, [operand for operand in operands if operand is not None])

  def _inside(self, line: Instruction) -> "Integers":
    """Returns the integers of the computation of a fusion."""
    computation = self.module.computations[line.called["calls"][0]]
    return Integers(self.module, computation, lambda index: self.value(line.operands[index]))


def _kept(body: Computation, index: int) -> int | None:
  """Returns which element of a loop's first tuple element `index` of the last one is, if any is."""
  lines, followed = body.instructions, {-1}
  while index not in followed:
    followed.add(index)
    line = lines[lines[body.root].operands[index]]
    while line.opcode in _SAME or line.opcode == "copy-done":
      line = lines[line.operands[0]]
    if line.opcode != "get-tuple-element" or lines[line.operands[0]].opcode != "parameter":
      return None
    before = int(search(r"index=(\d+)", line.attributes)[1])
    if before == index:
      return index
    index = before
  return None


def _apply(line: Instruction, operands: Sequence[tuple[int, ...]]) -> Value:
  """Returns the value of an instruction with known operands; None for other opcodes."""
  if line.opcode in _SAME:
    return operands[0]
  if line.opcode in _UNARY:
    return tuple(map(_UNARY[line.opcode], operands[0]))
  if line.opcode == "not":
    return tuple(int(not a) for a in operands[0]) if line.shape.startswith("pred") else None
  if line.opcode == "compare":
    compare = _COMPARE[search(r"direction=(\w+)", line.attributes)[1]]
    return tuple(int(compare(a, b)) for a, b in zip(*operands, strict=True))
  if line.opcode in _BINARY:
    return tuple(map(_BINARY[line.opcode], *operands))
  if line.opcode == "select":
    chosen, first, second = operands
    return tuple(a if yes else b for yes, a, b in zip(chosen, first, second, strict=True))
  if line.opcode == "broadcast" and len(operands[0]) == 1:
    return operands[0] * _size(line)
  if len(line.arrays[0][1]) != 1:
    return None
  if line.opcode == "concatenate":
    return tuple(itertools.chain(*operands))
  if line.opcode == "pad" and (found := re.search(r"padding=(\d+)_(\d+)(?!_)", line.attributes)):
    fill = operands[1]
    return fill * int(found[1]) + operands[0] + fill * int(found[2])
  if line.opcode == "slice":
    found = search(r"slice=\{\[(\d+):(\d+)\]\}", line.attributes)
    return operands[0][int(found[1]) : int(found[2])]
  if line.opcode == "dynamic-slice":
    size = _size(line)
    start = max(0, min(operands[1][0], len(operands[0]) - size))
    return operands[0][start : start + size]
  if line.opcode == "dynamic-update-slice":
    whole, part, (start,) = operands
    start = max(0, min(start, len(whole) - len(part)))
    return whole[:start] + part + whole[start + len(part) :]
  return None


def is_small(shape: str) -> bool:
  """Returns whether the text of an array's shape is one of integers that can be computed."""
  return _INTEGERS.match(shape) is not None


def _size(line: Instruction) -> int:
  arrays = line.arrays
  return math.prod(arrays[0][1]) if len(arrays) == 1 else _MAX_SIZE + 1


def _constant(line: Instruction) -> Value:
  numbers = re.findall(r"-?\d+|true|false", line.operands[0])
  words = {"true": 1, "false": 0}
  values = tuple(words[n] if n in words else int(n) for n in numbers)
  return values if len(values) == _size(line) else None
