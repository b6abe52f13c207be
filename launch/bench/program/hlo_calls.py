"""How often a step runs each computation of a compiled program: calls, branches, trips of loops."""

import dataclasses
import itertools
from collections.abc import Iterator

from launch.bench.program.hlo import Computation, Instruction, Module, array_shapes
from launch.bench.program.hlo_integers import Integers, Value


@dataclasses.dataclass(frozen=True)
class ComputationCall:
  """A computation at one of the places that call it.

  Attributes:
    computation: the called computation.
    times: how often a step runs it from there; a branch of a conditional counts as taken every
      time.
    fused: whether it is part of a fusion.
  """

  computation: Computation
  times: int
  fused: bool


@dataclasses.dataclass(frozen=True)
class Run:
  """A run of a computation whose instructions are executed one by one, such as the body of a loop.

  Attributes:
    integers: the computation, and the integers that are known in this run.
    times: how many runs of a step are like this one.
  """

  integers: Integers
  times: int


def calls(module: Module) -> Iterator[ComputationCall]:
  """Yields every computation once for each place that calls it, from the entry on."""
  yield from _calls(module, module.entry, 1, False)


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


def runs(module: Module) -> Iterator[Run]:
  """Yields the runs of all computations whose instructions are executed one by one.

  The computations of fusions, and those that a reduction or a sort applies to elements, belong to
  the instruction that calls them. The body of a loop has a run for every trip, or one for all where
  nothing in it depends on the trip. Of a conditional only the branch that is taken runs, or every
  one where it depends on data.
  """
  yield from _runs(Integers(module, module.computations[module.entry], _nothing), 1)


def _runs(integers: Integers, times: int) -> Iterator[Run]:
  yield Run(integers, times)
  for line in integers.computation.instructions.values():
    if line.opcode == "while":
      yield from _loop_runs(integers, line, times)
    elif line.opcode == "conditional":
      for operand, name in _branches(integers, line):
        yield from _runs(_called(integers, name, (operand,)), times)
    elif line.opcode in ("call", "async-start"):
      for name in itertools.chain(*line.called.values()):
        yield from _runs(_called(integers, name, line.operands), times)


def _loop_runs(integers: Integers, line: Instruction, times: int) -> Iterator[Run]:
  module = integers.module
  body = module.computations[line.called["body"][0]]
  known, unknown = integers.states(line), (None,) * len(array_shapes(line.shape))
  states = [unknown] if known is None else known[:-1]
  if not _varies(module, body.name):
    yield from _runs(Integers(module, body, _nothing), times * len(states))
    return
  for state in states:
    yield from _runs(Integers(module, body, state.__getitem__), times)


def _varies(module: Module, name: str) -> bool:
  """Returns whether runs of a computation may differ: whether it has a conditional or a kernel."""
  lines = module.computations[name].instructions.values()
  return any(line.opcode in ("conditional", "custom-call") for line in lines) or any(
    _varies(module, called)
    for line in lines
    if line.opcode in ("while", "call", "async-start")
    for called in itertools.chain(*line.called.values())
  )


def _called(integers: Integers, name: str, operands: tuple[str, ...]) -> Integers:
  """Returns the integers of a computation that gets these operands, or the only one as a tuple."""
  computation = integers.module.computations[name]
  lines = computation.instructions.values()
  given = [line for line in lines if line.opcode == "parameter"]
  if len(given) == 1 and given[0].shape.startswith("("):
    return Integers(
      integers.module, computation, lambda index: integers.element(operands[0], index)
    )
  return Integers(integers.module, computation, lambda index: integers.value(operands[index]))


def _branches(integers: Integers, line: Instruction) -> list[tuple[str, str]]:
  """Returns the branches of a conditional that may be taken, each with its operand."""
  choice, *operands = line.operands
  if "branch_computations" in line.called:
    names = line.called["branch_computations"]
  else:
    names = [line.called[key][0] for key in ("false_computation", "true_computation")]
    operands = operands[::-1]
  branches = list(zip(operands, names, strict=True))
  taken = integers.scalar(choice)
  if taken is None:
    return branches
  return [branches[taken if 0 <= taken < len(branches) else -1]]


def unknown_loops(module: Module) -> list[str]:
  """Returns the names of the loops whose trips could not be read; their bodies count once."""
  return [
    loop.name
    for computation in module.computations.values()
    for loop in computation.instructions.values()
    if loop.opcode == "while" and trip_count(module, computation, loop) is None
  ]


def trip_count(module: Module, outside: Computation, loop: Instruction) -> int | None:
  """Returns how often a loop runs its body, None if that cannot be read from the program."""
  states = Integers(module, outside, _nothing).states(loop)
  return None if states is None else len(states) - 1


def _nothing(index: int) -> Value:
  """Returns the integers of a computation that depend on data: none."""
  return None
