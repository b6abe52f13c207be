"""Rows on their way through the shared memory of a GPU: a ring that is refilled as it is read."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.kernels.depth_attention.mosaic_gpu import row_ops
from resjax.kernels.depth_attention.mosaic_gpu.row_ops import Row
from resjax.typing import Array


@dataclasses.dataclass(frozen=True)
class Stream:
  """Where a row of each token lies in global memory.

  Attributes:
    row: token -> reference of the row [D / 128, 128].
    valid: whether there is a row; None: always.
  """

  row: Callable[[Array], Any]
  valid: Array | None = None


def when(valid: Array | None, function: Callable) -> None:
  """Calls a function where `valid`, None meaning always."""
  if valid is None:
    function()
  else:
    pl.when(valid)(function)


@dataclasses.dataclass(frozen=True)
class Ring:
  """R rows of shared memory through which the rows of a program's tokens pass in order.

  Position j of the program's token number `step` lies in row (step · P + j) mod R, P the positions
  of a token. Whoever has done with it releases it: then the row R positions later is copied there.
  Rows of streams that are not valid are neither copied nor waited for, but released.

  Attributes:
    rows: [R, D / 128, 128] in shared memory.
    barriers: one per row.
    streams: what the positions of a token hold, P in all.
    token: step -> token.
    steps: number of the program's tokens.
  """

  rows: Any
  barriers: Any
  streams: tuple[Stream, ...]
  token: Callable[[Array], Array]
  steps: Array

  def start(self) -> None:
    """Fills the ring."""
    for ahead in range(self.rows.shape[0]):
      self._fetch(jnp.int32(0), ahead)

  def wait(self, step: Array, position: int) -> None:
    """Waits until the row of a valid position has arrived."""
    plgpu.barrier_wait(self.barriers.at[self._place(step, position)])

  def load(self, step: Array, position: int) -> Row:
    """Reads the row of a position that has arrived."""
    return row_ops.load(self.at(step, position))

  def load_part(self, step: Array, position: int, index: Array) -> Array:
    """Reads a part of the row of a position that has arrived."""
    return row_ops.load_part(self.at(step, position), index)

  def at(self, step: Array, position: int) -> Any:
    """Returns the reference of the row of a position that has arrived."""
    return self.rows.at[self._place(step, position)]

  def store(self, step: Array, position: int, row: Row) -> None:
    """Replaces the row of a position that has arrived."""
    row_ops.store(self.at(step, position), row)

  def release(self, step: Array, positions: range) -> None:
    """Gives up the rows of some positions, valid or not, once all threads have done with them."""
    row_ops.synchronize()
    self.refill(step, positions)

  def refill(self, step: Array, positions: range) -> None:
    """Copies what comes next to the rows of some positions, which no thread needs any more."""
    for position in positions:
      self._fetch(step, position + self.rows.shape[0])

  def _place(self, step, position):
    return lax.rem(step * len(self.streams) + position, jnp.int32(self.rows.shape[0]))

  def _fetch(self, step, position: int) -> None:
    """Copies the row of a position, which may be one of a later token."""
    later, position = divmod(position, len(self.streams))
    step, stream = step + later, self.streams[position]

    def copy():
      place = self._place(step, position)
      source = stream.row(self.token(step))
      plgpu.copy_gmem_to_smem(source, self.rows.at[place], self.barriers.at[place])

    exists = step < self.steps
    when(exists if stream.valid is None else exists & stream.valid, copy)
