"""The cotangent of a bank of sources, of which a kernel for TPUs moves the valid slots alone.

What the pipeline of a kernel writes it writes for all slots, so these tiles are copied by hand:
those of the next tile of tokens are read, and those of the last one written, while one is in work.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention.mosaic_tpu.direct_plan import Plan
from resjax.kernels.depth_attention.mosaic_tpu.tiles import ROWS
from resjax.typing import Array


@dataclasses.dataclass(frozen=True)
class BankTiles:
  """Tiles of the cotangent of a bank at one step of a kernel; does nothing without a bank.

  Attributes:
    plan: sizes.
    reads: whether there is a cotangent already, which tiles begin with.
    num_valid: number of slots to move.
    tile: index of the tile of tokens.
    step: index of the step in this part of the grid.
    source: cotangent [N_max, T, D] that is there already, in memory.
    target: cotangent [N_max, T, D] in memory.
    buffers: [buffers, N_max, tokens, D] on the chip.
    semaphores: of reads and of writes, [2, buffers].
  """

  plan: Plan
  reads: bool
  num_valid: Array
  tile: Array
  step: Array
  source: Any
  target: Any
  buffers: Any
  semaphores: Any

  @staticmethod
  def num_buffers(reads: bool) -> int:
    """One is worked on, one written, and one read."""
    return 3 if reads else 2

  @classmethod
  def scratch_shapes(cls, plan: Plan, reads: bool) -> tuple[Any, Any]:
    """Returns the types of buffers and semaphores; None without a bank."""
    if not plan.work.num_banked:
      return None, None
    count = cls.num_buffers(reads)
    tiles = pltpu.VMEM(
      (count, plan.work.num_banked, plan.tiles.tokens, plan.work.width), plan.work.dtype
    )
    return tiles, pltpu.SemaphoreType.DMA((2, count))

  def begin(self) -> None:
    """Waits for the buffer of two steps ago, and starts to read the tile of the next step."""
    if not self.plan.work.num_banked:
      return
    pl.when(self.step >= 2)(lambda: self._wait_for_write(self.step - 2))
    if self.reads:
      pl.when(self.step == 0)(lambda: self._for_each(True, self.step, "start"))
      more = self.step + 1 < self.plan.grid[1]
      pl.when(more)(lambda: self._for_each(True, self.step + 1, "start"))

  def wait_until_read(self) -> None:
    """Waits for what this step reads."""
    if self.plan.work.num_banked and self.reads:
      self._for_each(True, self.step, "wait")

  def tiles(self) -> tuple[Any, ...]:
    """Returns references [tokens, D] to the tile of every slot."""
    if not self.plan.work.num_banked:
      return ()
    here = self._buffer(self.step)
    return tuple(self.buffers.at[here, slot] for slot in range(self.plan.work.num_banked))

  def end(self) -> None:
    """Starts to write the tile of this step; at the last step waits for all."""
    if not self.plan.work.num_banked:
      return
    self._for_each(False, self.step, "start")

    @pl.when(self.step == self.plan.grid[1] - 1)
    def _():
      pl.when(self.step >= 1)(lambda: self._wait_for_write(self.step - 1))
      self._wait_for_write(self.step)

  def _wait_for_write(self, step: Array) -> None:
    self._for_each(False, step, "wait")

  def _buffer(self, step: Array) -> Array:
    return lax.rem(step, self.num_buffers(self.reads))

  def _for_each(self, reads: bool, step: Array, action: str) -> None:
    """Starts, or waits for, the copies of all valid slots of a step."""
    tokens, tile = self.plan.tiles.tokens, self.tile + step - self.step
    rest = self.plan.work.num_tokens % tokens

    def copy_rows(count):
      def body(slot, _):
        getattr(self._copy(reads, step, tile, slot, count), action)()

      lax.fori_loop(0, self.num_valid, body, None)

    if not rest:
      copy_rows(tokens)
      return
    ends = tile == self.plan.num_tiles - 1
    pl.when(ends)(lambda: copy_rows(rest + -rest % ROWS))
    pl.when(jnp.logical_not(ends))(lambda: copy_rows(tokens))

  def _copy(self, reads: bool, step: Array, tile: Array, slot: Array, rows: int) -> Any:
    start = pl.multiple_of(tile * self.plan.tiles.tokens, ROWS)
    buffer, index = self._buffer(step), 0 if reads else 1
    outside = (self.source if reads else self.target).at[slot, pl.ds(start, rows)]
    inside = self.buffers.at[buffer, slot, pl.ds(0, rows)]
    ends = (outside, inside) if reads else (inside, outside)
    return pltpu.make_async_copy(*ends, self.semaphores.at[index, buffer])
