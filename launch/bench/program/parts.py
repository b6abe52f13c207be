"""Tells which part of a training step an instruction of a compiled program belongs to.

The compiler notes for an instruction the names of the scopes (`jax.named_scope`) that it was traced
in, and the innermost scope that `_SCOPES` has decides. An instruction that mixes several parts has
the name of its last operation, with three exceptions. A fusion with a matrix product belongs to the
product, into which the compiler pulls what comes before and after it: residual additions, norms,
activations. A fusion that cuts an array out of a stack, and does nothing else but name its axes
anew, belongs to who cuts: to the loop over layers. And whatever exchanges data between devices is a
collective. An instruction that the compiler adds without a name, such as a change of layout, has
the part of its operand, else of its user; a tuple, which holds arrays of all parts, has the part of
the loop that takes it.
"""

import re
from collections.abc import Iterable

from launch.bench.program.collectives import KINDS
from launch.bench.program.hlo import Computation, Instruction, Module, on_chip
from launch.bench.program.moved_bytes import accompanies_exchange

PROJECTIONS, ATTENTION, DEPTH = "projections and MLP", "attention", "depth mixing"
NORMS, ROPE, LOSS = "norms", "RoPE", "embedding and loss"
LOOPS, OPTIMIZER, COLLECTIVES = "loops over layers", "optimizer", "collectives"
PREFETCHES, REST = "prefetches", "the rest"
PARTS = (
  PROJECTIONS, ATTENTION, ROPE, NORMS, DEPTH, LOOPS, LOSS, OPTIMIZER, COLLECTIVES, PREFETCHES, REST,
)  # fmt: skip

_SCOPES = {
  "projection": PROJECTIONS,
  "mlp": PROJECTIONS,
  "attention": ATTENTION,
  "rope": ROPE,
  "norm": NORMS,
  "depth_mixing": DEPTH,
  "layers": LOOPS,
  "embedding": LOSS,
  "loss": LOSS,
  "optimizer": OPTIMIZER,
}
_NAME = re.compile(r'op_name="([^"]*)"')
_WORDS = re.compile(r"\w+")
_PRODUCTS = ("convolution", "dot")
_CUT = "dynamic-slice"
_MOVES_NOTHING = {"fusion", "parameter", "constant", "bitcast"}


class Parts:
  """The parts of the instructions of a program.

  Args:
    module: the program.
  """

  def __init__(self, module: Module):
    self._module = module
    self._found: dict[str, dict[str, str]] = {}

  def of(self, computation: Computation, line: Instruction) -> str:
    """Returns the part, one of `PARTS`, of an instruction of a computation."""
    if line.opcode in ("copy-start", "slice-start") and on_chip(line.shape):
      return PREFETCHES
    if computation.name not in self._found:
      self._found[computation.name] = self._parts(computation)
    return self._found[computation.name][line.name]

  def _parts(self, computation: Computation) -> dict[str, str]:
    lines = computation.instructions
    found = {name: self._own(line) for name, line in lines.items()}
    users: dict[str, list[str]] = {}
    for line in lines.values():
      for operand in line.operands:
        users.setdefault(operand, []).append(line.name)
    for line in lines.values():  # operands come before what reads them
      if found[line.name] is None and line.opcode != "tuple":
        found[line.name] = _first(found.get(name) for name in line.operands)
    for line in reversed(lines.values()):
      if found[line.name] is None:
        found[line.name] = _first(found[name] for name in users.get(line.name, ()))
    return {name: part or REST for name, part in found.items()}

  def _own(self, line: Instruction) -> str | None:
    """Returns the part that an instruction itself tells of."""
    inside = list(self._inside(line))
    if any(map(_exchanges, inside)) and not self._accompanies(line):
      return COLLECTIVES
    deciding = [one for one in inside if one.opcode in _PRODUCTS] or _only_cuts(inside)
    return _first(map(_named, (*deciding, line, *reversed(inside))))

  def _accompanies(self, line: Instruction) -> bool:
    called = line.called.get("calls", [])
    return any(accompanies_exchange(self._module.computations[name]) for name in called)

  def _inside(self, line: Instruction) -> Iterable[Instruction]:
    """Yields an instruction and those that it fuses."""
    yield line
    if line.opcode == "fusion":
      for inner in self._module.computations[line.called["calls"][0]].instructions.values():
        yield from self._inside(inner)


def _only_cuts(lines: list[Instruction]) -> list[Instruction]:
  """Returns the instructions that cut, or nothing if others do more than to name axes."""
  cuts = [one for one in lines if one.opcode == _CUT]
  others = {one.opcode for one in lines} - {_CUT}
  return cuts if others <= _MOVES_NOTHING else []


def _exchanges(line: Instruction) -> bool:
  kind = line.opcode.removesuffix("-start").removesuffix("-done")
  return kind in (*KINDS, "send", "recv")


def _named(line: Instruction) -> str | None:
  """Returns the part that the innermost scope of an instruction's name stands for."""
  name = _NAME.search(line.attributes)
  words = reversed(_WORDS.findall(name[1])) if name else ()
  return _first(_SCOPES.get(word) for word in words)


def _first(parts: Iterable[str | None]) -> str | None:
  return next((part for part in parts if part is not None), None)
