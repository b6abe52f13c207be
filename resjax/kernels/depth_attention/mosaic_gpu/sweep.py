"""Walks of the reverse pass on NVIDIA GPUs over the sources of a token."""

import dataclasses
from collections.abc import Callable

from jax import lax

from resjax.kernels.depth_attention.mosaic_gpu.ring import Ring
from resjax.kernels.depth_attention.mosaic_gpu.row_ops import Row
from resjax.kernels.depth_attention.operands import Operands
from resjax.typing import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Sweep:
  """One walk over the sources of a token.

  Attributes:
    operands: references.
    ring: holds the cotangent of the output, then the sources: once if they are kept, else once
      for every sweep.
    step: of the program.
    group: sources between releases.
    kept: whether the sources stay in the ring until the last sweep.
    index: of the sweep.
    num_sweeps: over a token.
  """

  operands: Operands
  ring: Ring
  step: Array
  group: int
  kept: bool
  index: int
  num_sweeps: int

  def groups(self) -> list[range]:
    """Returns the slots, in groups."""
    count = self.operands.num_slots
    return [range(s, min(s + self.group, count)) for s in range(0, count, self.group)]

  def valid(self, slot: int) -> Array | None:
    """Returns whether a source counts; None: always."""
    return self.ring.streams[1 + slot].valid

  def load(self, slot: int) -> Row:
    """Reads a source that counts."""
    if not self.kept or self.index == 0:
      self.ring.wait(self.step, self._position(slot))
    return self.ring.load(self.step, self._position(slot))

  def add(self, total: PyTree, slot: int, function: Callable) -> PyTree:
    """Returns function(total, source), or the total where the source does not count."""

    def add(total):
      return function(total, self.load(slot))

    valid = self.valid(slot)
    return add(total) if valid is None else lax.cond(valid, add, lambda total: total, total)

  def release(self, slots: range) -> None:
    """Gives up sources that no later sweep reads."""
    if not self.kept or self.index == self.num_sweeps - 1:
      self.ring.release(self.step, range(self._position(slots[0]), self._position(slots[-1]) + 1))

  def _position(self, slot):
    return 1 + slot + (0 if self.kept else self.index * self.operands.num_slots)
