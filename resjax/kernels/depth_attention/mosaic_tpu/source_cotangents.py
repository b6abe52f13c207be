"""Cotangents of sources on TPUs: of the bank's, a kernel moves only the valid slots.

The pipeline of a kernel would write all slots of an output. So the kernel copies these tiles by
hand: while one tile of tokens is worked on, the next one is read and the one before is written.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array, PyTree
from resjax.kernels.depth_attention.mosaic_tpu.sources_plan import SourcesPlan
from resjax.kernels.depth_attention.operands import Cotangents, Operands
from resjax.kernels.mosaic_tpu import ROWS, call
from resjax.kernels.operation import Field, Ref


class SourceCotangents(NamedTuple):
  """The cotangents of all sources, summed over later reads: inputs of a reverse kernel.

  Attributes:
    bank: [N_max, T, D], or None.
    recent: tuple of arrays [T, D]; empty if the sources are not threaded.
  """

  bank: Field
  recent: tuple[Field, ...]


class BankScratch(NamedTuple):
  """Buffers in VMEM for tiles of the cotangent of a bank; both None without a bank.

  Attributes:
    buffers: [number of buffers, N_max, tokens, D].
    semaphores: of reads and of writes, [2, number of buffers].
  """

  buffers: Any
  semaphores: Any


def scratch_shapes(plan: SourcesPlan) -> BankScratch:
  """Returns what to allocate: a buffer to work on, one to write, and if there is an input, one."""
  if not plan.sizes.num_banked:
    return BankScratch(None, None)
  count = num_buffers(plan)
  shape = count, plan.sizes.num_banked, plan.tiles.tokens, plan.sizes.width
  return BankScratch(pltpu.VMEM(shape, plan.dtype), pltpu.SemaphoreType.DMA((2, count)))


def num_buffers(plan: SourcesPlan) -> int:
  """Returns the number of tiles that are on the chip at a time."""
  return 3 if plan.sizes.threaded else 2


def inputs_of(plan: SourcesPlan, operands: Operands, d_sources: PyTree) -> SourceCotangents:
  """Returns the inputs of a kernel: source cotangents of later reads, zeros for a fresh bank.

  Args:
    plan: tiles of the kernel.
    operands: of the read.
    d_sources: cotangents of bank and recent sources; None if the sources are not threaded.
  """
  d_bank, d_recent = d_sources or (None, ())
  recent = tuple(call.tiled(d, plan.tokens_spec()) for d in d_recent)
  return SourceCotangents(_bank_input(plan, operands.bank, d_bank), recent)


def outputs_of(plan: SourcesPlan) -> tuple[call.Tiled | None, tuple[call.Tiled, ...]]:
  """Returns the outputs of a kernel that are cotangents of the bank and of recent sources."""
  recent = call.Tiled(plan.source_shape(), plan.tokens_spec())
  return _bank_output(plan), (recent,) * plan.sizes.num_recent


def without_padding(plan: SourcesPlan, written: Cotangents) -> Cotangents:
  """Returns the cotangents that a kernel wrote, without the padding of the bank's token axis."""
  if written.bank is None:
    return written
  return written._replace(bank=written.bank[:, : plan.sizes.num_tokens])


def _bank_input(plan: SourcesPlan, bank: Array | None, d_bank: Array | None) -> call.Tiled | None:
  """Returns the bank's part of the inputs.

  Its T is a multiple of `ROWS`, because copies by hand consist of whole registers.
  """
  if bank is None:
    return None
  rest = -plan.sizes.num_tokens % ROWS
  d_bank = jnp.zeros_like(bank) if d_bank is None else d_bank
  return call.in_memory(jnp.pad(d_bank, ((0, 0), (0, rest), (0, 0))) if rest else d_bank)


def _bank_output(plan: SourcesPlan) -> call.Tiled | None:
  """Returns the bank's part of the outputs, whose T is padded like that of the input."""
  sizes = plan.sizes
  if not sizes.num_banked:
    return None
  padded = sizes.num_tokens + -sizes.num_tokens % ROWS
  return call.in_memory(jax.ShapeDtypeStruct((sizes.num_banked, padded, sizes.width), plan.dtype))


@dataclasses.dataclass(frozen=True)
class CotangentTiles:
  """Tiles of source cotangents at one step of a kernel, which copies the bank's by hand.

  Attributes:
    plan: tiles of the kernel. If the sources are threaded, tiles begin with the cotangents that
      later reads left.
    num_valid: number of slots of the bank to move.
    tile: index of the tile of tokens.
    step: index of the step in this part of the grid.
    inputs: references of the cotangents that later reads left, the bank's in memory.
    outputs: references of the cotangents to write, the bank's in memory.
    scratch: on-chip memory.
  """

  plan: SourcesPlan
  num_valid: Array
  tile: Array
  step: Array
  inputs: SourceCotangents
  outputs: Cotangents
  scratch: BankScratch

  @property
  def _exists(self) -> bool:
    return self.plan.sizes.num_banked > 0

  @property
  def _reads(self) -> bool:
    return self._exists and self.plan.sizes.threaded

  def begin(self) -> None:
    """Waits until the buffer of two steps ago is written; starts to read the next tile."""
    if not self._exists:
      return
    pl.when(self.step >= 2)(lambda: self._wait_for_write(self.step - 2))
    if self._reads:
      pl.when(self.step == 0)(lambda: self._for_each(True, self.step, "start"))
      more = self.step + 1 < self.plan.grid[1]
      pl.when(more)(lambda: self._for_each(True, self.step + 1, "start"))

  def wait_until_read(self) -> None:
    """Waits until the tile of this step is read."""
    if self._reads:
      self._for_each(True, self.step, "wait")

  def old(self) -> tuple[Ref, ...]:
    """Returns references [tokens, D] to what later reads left of every source, or none."""
    return (*self._banked(), *self.inputs.recent) if self.plan.sizes.threaded else ()

  def new(self) -> tuple[Ref, ...]:
    """Returns references [tokens, D] to the output tiles, one per source."""
    return *self._banked(), *self.outputs.recent

  def _banked(self) -> tuple[Ref, ...]:
    if not self._exists:
      return ()
    here = self._buffer(self.step)
    return tuple(self.scratch.buffers.at[here, slot] for slot in range(self.plan.sizes.num_banked))

  def end(self) -> None:
    """Starts to write the tile of this step; at the last step waits until all are written."""
    if not self._exists:
      return
    self._for_each(False, self.step, "start")

    @pl.when(self.step == self.plan.grid[1] - 1)
    def _() -> None:
      pl.when(self.step >= 1)(lambda: self._wait_for_write(self.step - 1))
      self._wait_for_write(self.step)

  def _wait_for_write(self, step: Array) -> None:
    self._for_each(False, step, "wait")

  def _buffer(self, step: Array) -> Array:
    return lax.rem(step, num_buffers(self.plan))

  def _for_each(self, reads: bool, step: Array, action: str) -> None:
    """Starts, or waits for, the copies of all valid slots of a step."""
    tokens, tile = self.plan.tiles.tokens, self.tile + step - self.step
    rest = self.plan.sizes.num_tokens % tokens

    def copy_rows(count: int) -> None:
      def body(slot: Array, _: None) -> None:
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
    outside = (self.inputs if reads else self.outputs).bank.at[slot, pl.ds(start, rows)]
    inside = self.scratch.buffers.at[buffer, slot, pl.ds(0, rows)]
    ends = (outside, inside) if reads else (inside, outside)
    return pltpu.make_async_copy(*ends, self.scratch.semaphores.at[index, buffer])
