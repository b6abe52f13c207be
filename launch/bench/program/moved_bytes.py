"""Counts the bytes that the instructions of a compiled program read and write.

The rules follow XLA's own cost analysis, with two differences: an array that an instruction
reads or writes a part of counts with that part, and a kernel that skips sources counts with those
that it reads.
"""

import collections
import dataclasses
import math
import re

from launch.bench.program.collectives import KINDS
from launch.bench.program.hlo import Computation, Instruction, Module, array_shapes, arrays, on_chip
from launch.bench.program.hlo_integers import Integers

# These move nothing, or what they move is counted in the computations that they call.
_STILL = """
  parameter constant tuple get-tuple-element bitcast after-all while conditional call opt-barrier
  domain partition-id replica-id add-dependency async-start async-update get-dimension-size
"""
_FREE = frozenset(_STILL.split())
_NO_TRAFFIC = ("AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast", "Sharding")
_SEMAPHORE = "S(2)"  # in the text of a shape: the memory of semaphores
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_DECLARED = re.compile(r'"cost_estimate":\{[^}]*"bytes_accessed":"(\d+)"')
# How many arrays [T, D] the depth-attention kernels move for each source of a bank. The cost that
# they declare has all slots of the bank; they skip those that no source is in yet.
_PER_SOURCE = {
  "depth_attention_forward": 1,
  "depth_attention_backward": 3,
  "depth_attention_block_forward": 1,
  "depth_attention_block_backward": 3,
}


@dataclasses.dataclass(frozen=True)
class Moved:
  """The bytes that an instruction moves.

  Attributes:
    total: the bytes that it reads and writes, wherever they are.
    hbm: the bytes that it reads and writes in the device's main memory.
  """

  total: float
  hbm: float

  def __add__(self, other: "Moved") -> "Moved":
    return Moved(self.total + other.total, self.hbm + other.hbm)

  def __mul__(self, times: int) -> "Moved":
    return Moved(self.total * times, self.hbm * times)


_NONE = Moved(0, 0)


def moved(integers: Integers, line: Instruction) -> Moved:
  """Returns the bytes that one execution of an instruction moves.

  Args:
    integers: the computation, with the integers that are known in this execution.
    line: the instruction.
  """
  if line.opcode in _FREE or line.opcode.endswith("-done"):
    return _NONE
  computation = integers.computation
  operands = [computation.instructions[name] for name in line.operands]
  if line.opcode == "fusion":
    return _fusion(integers.module, line, operands)
  if line.opcode == "custom-call":
    return _kernel(integers, line, operands)
  if line.opcode.endswith("-start"):
    return _started(line, operands)
  if line.opcode in ("dynamic-slice", "slice", "gather"):
    size = line.num_bytes
    return _at(operands[0].shape, size) + _at(line.shape, size) + _all(operands[1:])
  if line.opcode == "dynamic-update-slice":
    size = operands[1].num_bytes
    return _at(operands[1].shape, size) + _at(line.shape, size)
  return _all(operands) + _at(line.shape, line.num_bytes)


def _at(shape: str, size: float) -> Moved:
  """Returns that `size` bytes of an array are moved, which is on chip or not."""
  return Moved(size, 0 if on_chip(shape) else size)


def _all(lines: list[Instruction]) -> Moved:
  """Returns that the results of these instructions are moved as a whole."""
  return sum((_whole(line.shape) for line in lines), _NONE)


def _whole(shape: str) -> Moved:
  return sum((_at(part, _size(part)) for part in array_shapes(shape)), _NONE)


def _size(shape: str) -> int:
  return sum(bits * math.prod(sizes) for bits, sizes in arrays(shape)) // 8


def _started(line: Instruction, operands: list[Instruction]) -> Moved:
  """Counts a copy or an exchange that runs beside other instructions.

  Its result is a tuple. For a copy it has the result, the operand and more; for others the
  operands, the results and more; for an all-reduce only the results.
  """
  parts = array_shapes(line.shape)
  if line.opcode == "copy-start":
    return _whole(parts[0]) + _all(operands)
  if line.opcode == "slice-start":
    return _at(operands[0].shape, _size(parts[1])) + _whole(parts[1])
  results = parts if line.opcode == "all-reduce-start" else parts[1:2]
  return sum(map(_whole, results), _all(operands))


def _kernel(integers: Integers, line: Instruction, operands: list[Instruction]) -> Moved:
  """Counts a kernel by the bytes that it declares, else by its operands and results.

  Declared bytes count as HBM, except for arrays that are on chip.
  """
  target = _TARGET.search(line.attributes)
  if target and target[1] in _NO_TRAFFIC:
    return _NONE
  every = _all(operands) + _whole(line.shape)
  declared = _DECLARED.search(line.attributes)
  if not declared or not int(declared[1]):
    return every
  total = int(declared[1]) - _skipped(integers, line, operands)
  on_chip = min(every.total - every.hbm, total)
  return Moved(total, total - on_chip)


def reads_by_count(line: Instruction) -> bool:
  """Returns whether an instruction is a kernel with a dynamic number of sources."""
  return line.opcode == "custom-call" and _kernel_name(line) in _PER_SOURCE


def num_valid(integers: Integers, line: Instruction) -> int | None:
  """Returns how many slots of its bank such a kernel reads, None if that depends on data."""
  counts = integers.value(line.operands[0])
  return None if counts is None else counts[0]


def _skipped(integers: Integers, line: Instruction, operands: list[Instruction]) -> float:
  """Returns the bytes that a depth-attention kernel declares for empty slots of its bank.

  A kernel takes its bank [N, T, D] N times, once for each slot.
  """
  if not reads_by_count(line) or (valid := num_valid(integers, line)) is None:
    return 0
  times = collections.Counter(line.operands)
  for operand in operands:
    slots = times[operand.name]
    if len(sizes := operand.arrays[0][1]) == 3 and sizes[0] == slots:
      per_slot = _PER_SOURCE[_kernel_name(line)] * operand.num_bytes / slots
      return (slots - valid) * per_slot
  return 0


def _kernel_name(line: Instruction) -> str:
  return line.name.rstrip(".0123456789")


def _fusion(module: Module, line: Instruction, operands: list[Instruction]) -> Moved:
  inside = module.computations[line.called["calls"][0]]
  accompanies = accompanies_exchange(inside)
  total = _NONE
  for number, operand in enumerate(operands):
    if accompanies and _is_exchanged(inside, number):
      continue
    total += _at(operand.shape, min(_read(module, inside, number), operand.num_bytes))
  shapes, roots = array_shapes(line.shape), _results(inside)
  if len(shapes) != len(roots):  # one instruction makes several, such as a sort
    given = len(operands) if _SEMAPHORE in line.shape else 0  # the start of an exchange has both
    return sum(map(_whole, shapes[given:]), total)
  for shape, root in zip(shapes, roots, strict=True):
    if accompanies and root.opcode in ("parameter", "custom-call", *KINDS):
      continue
    written = inside.instructions[root.operands[1]] if _in_place(root) else root
    total += _at(shape, min(_size(shape), written.num_bytes))
  return total


def accompanies_exchange(inside: Computation) -> bool:
  """Returns whether a fusion goes on with an exchange that another instruction has started.

  The compiler for TPUs lets fusions run while devices exchange; each of them names the exchange and
  its arrays, and takes its semaphores. The arrays count where the exchange starts.
  """
  lines = inside.instructions.values()
  return any(line.opcode == "parameter" and _SEMAPHORE in line.shape for line in lines)


def _is_exchanged(inside: Computation, number: int) -> bool:
  """Returns whether a fusion hands a parameter to an exchange or on, and does not read it."""
  name = _parameter(inside, number).name
  users = [line for line in inside.instructions.values() if name in line.operands]
  return all(line.opcode in ("tuple", "custom-call", *KINDS) for line in users)


def _results(inside: Computation) -> list[Instruction]:
  """Returns what makes each result of a fusion, behind bitcasts."""
  root = inside.instructions[inside.root]
  names = root.operands if root.opcode == "tuple" else (root.name,)
  return [_source(inside, name) for name in names]


def _source(inside: Computation, name: str) -> Instruction:
  line = inside.instructions[name]
  while line.opcode == "bitcast":
    line = inside.instructions[line.operands[0]]
  return line


def _in_place(line: Instruction) -> bool:
  return line.opcode == "dynamic-update-slice"


def _parameter(inside: Computation, number: int) -> Instruction:
  lines = inside.instructions.values()
  return next(
    line for line in lines if line.opcode == "parameter" and line.operands[0] == str(number)
  )


def _read(module: Module, inside: Computation, number: int) -> float:
  """Returns how many bytes of a parameter a fusion reads."""
  lines, parameter = inside.instructions, _parameter(inside, number)
  names, size = [parameter.name], 0.0
  results = {line.name for line in _results(inside)}
  if parameter.name in results:
    return parameter.num_bytes
  for name in names:
    for user in lines.values():
      if name not in user.operands:
        continue
      if user.opcode == "bitcast":
        names.append(user.name)
      elif user.opcode in ("dynamic-slice", "slice", "gather") and user.operands[0] == name:
        size += user.num_bytes
      elif _in_place(user) and user.operands[0] == name and user.name in results:
        continue
      elif user.opcode == "fusion":
        called = module.computations[user.called["calls"][0]]
        places = [place for place, given in enumerate(user.operands) if given == name]
        size += sum(_read(module, called, place) for place in places)
      elif user.opcode != "tuple":
        return parameter.num_bytes
  return size
