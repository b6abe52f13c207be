"""How a kernel for NVIDIA GPUs goes over the sources of a token, once or several times."""

import dataclasses
import functools
from collections.abc import Callable

from jax import lax

from resjax.base import Array, PyTree
from resjax.kernels.depth_attention.operands import Operands
from resjax.kernels.mosaic_gpu import Ring, Row, when


@dataclasses.dataclass(frozen=True)
class SourceWalk:
  """One of several walks over the sources of a token, which pass through a ring.

  Attributes:
    operands: references.
    ring: holds `before` other rows of each token, then its sources: once if they are kept, else
      once for every walk.
    step: index of the token within its program.
    group: number of sources between releases.
    kept: whether the sources stay in the ring until the last walk.
    index: number of this walk.
    num_walks: number of walks over each token.
    before: number of other positions of the ring before the sources of this walk.
  """

  operands: Operands
  ring: Ring
  step: Array
  group: int
  kept: bool
  index: int
  num_walks: int
  before: int = 0

  def groups(self) -> list[range]:
    """Returns the slots, in groups."""
    count = self.operands.num_slots
    return [range(s, min(s + self.group, count)) for s in range(0, count, self.group)]

  def valid(self, slot: int) -> Array | None:
    """Returns whether a slot counts; None if it always does."""
    return self.ring.streams[self._position(slot)].valid

  def wait(self, slot: int) -> None:
    """Waits until the source of a slot that counts has arrived; to be called once in a walk."""
    if not self.kept or self.index == 0:
      self.ring.wait(self.step, self._position(slot))

  def wait_all(self, slots: range) -> None:
    """Waits until the sources of all slots that count have arrived; once in a walk."""
    for slot in slots:
      when(self.valid(slot), functools.partial(self.wait, slot))

  def load(self, slot: int) -> Row:
    """Waits for the source of a slot that counts, and reads it."""
    self.wait(slot)
    return self.ring.load(self.step, self._position(slot))

  def load_part(self, slot: int, index: Array | int) -> Array:
    """Reads a part of the source of a slot that counts and has arrived."""
    return self.ring.load_part(self.step, self._position(slot), index)

  def add(self, total: PyTree, slot: int, function: Callable) -> PyTree:
    """Returns function(total, source), or the total if the slot does not count."""
    return self.where_valid(slot, lambda total: function(total, self.load(slot)), total)

  def where_valid(self, slot: int, function: Callable, total: PyTree) -> PyTree:
    """Returns function(total), or the total if the slot does not count."""
    valid = self.valid(slot)
    return function(total) if valid is None else lax.cond(valid, function, lambda t: t, total)

  def one_by_one(self, slot: int, function: Callable, total: PyTree) -> PyTree:
    """Returns what `where_valid` does, behind a branch in any case.

    The compiler moves nothing across a branch. Without one it would load so much of several sources
    at a time that registers spill.
    """
    valid = self.valid(slot)
    if valid is None:
      valid = self.operands.counts[0] >= 0  # always, which the compiler cannot know
    return lax.cond(valid, function, lambda t: t, total)

  def release(self, slots: range) -> None:
    """Gives up sources that no later walk reads."""
    if not self.kept or self.index == self.num_walks - 1:
      self.ring.release(self.step, range(self._position(slots[0]), self._position(slots[-1]) + 1))

  def _position(self, slot: int) -> int:
    return self.before + slot + (0 if self.kept else self.index * self.operands.num_slots)
