"""Counts the memory traffic of a compiled training step, by part, in passes per sublayer.

A *pass* reads or writes an array [B, T, D] in bfloat16 once, a device's share of the activations of
a step: 2 B T D bytes. The count takes operands and results of every instruction times the runs of
its computation, see `moved_bytes` for what that leaves out, and `parts` for which part an
instruction belongs to.
"""

import collections
import dataclasses
from collections.abc import Mapping

from launch.bench.program.hlo import Instruction, Module
from launch.bench.program.hlo_calls import runs
from launch.bench.program.hlo_integers import Integers
from launch.bench.program.moved_bytes import Moved, moved, num_valid, reads_by_count
from launch.bench.program.parts import PARTS, Parts
from resjax.train.runs import Run

_BYTES = 2  # of a bfloat16


@dataclasses.dataclass(frozen=True)
class Passes:
  """The memory traffic of a step of one device, in passes per sublayer.

  Attributes:
    total: what each part moves, wherever the arrays are. An array that is prefetched into on-chip
      memory counts when it is copied there and when it is read there.
    hbm: what each part moves from and to the device's main memory.
    guessed: the instructions that count in full because it depends on data what they move:
      conditionals, where all branches count, and kernels, which count with all their sources.
  """

  total: Mapping[str, float]
  hbm: Mapping[str, float]
  guessed: tuple[str, ...]


def count_passes(module: Module, run: Run) -> Passes:
  """Counts the traffic of the training step of a run.

  Args:
    module: the compiled step.
    run: the run that it trains.
  """
  found, guessed = traffic(module)
  unit = pass_bytes(run) * run.decoder.num_layers * len(run.decoder.sites)
  return Passes(
    {part: found[part].total / unit for part in PARTS},
    {part: found[part].hbm / unit for part in PARTS},
    guessed,
  )


def traffic(module: Module) -> tuple[Mapping[str, Moved], tuple[str, ...]]:
  """Returns the bytes that each of `PARTS` of a program moves, and `Passes.guessed`."""
  parts, guessed = Parts(module), set()
  found: dict[str, Moved] = collections.defaultdict(lambda: Moved(0, 0))
  for one in runs(module):
    computation = one.integers.computation
    for line in computation.instructions.values():
      if _is_guessed(one.integers, line):
        guessed.add(line.name)
      bytes_moved = moved(one.integers, line)
      if bytes_moved.total:
        found[parts.of(computation, line)] += bytes_moved * one.times
  return found, tuple(sorted(guessed))


def _is_guessed(integers: Integers, line: Instruction) -> bool:
  """Returns whether the traffic of an instruction depends on integers that are not known."""
  if reads_by_count(line):
    return num_valid(integers, line) is None
  return line.opcode == "conditional" and integers.scalar(line.operands[0]) is None


def pass_bytes(run: Run) -> float:
  """Returns the bytes of one pass over the activations [B, T, D] of a device."""
  layout = run.layout
  shards = layout.num_shards("batch") * layout.num_shards("tokens") * layout.num_shards("embed")
  return run.train.batch_size * run.data.seq_len * run.decoder.d_model * _BYTES / shards
