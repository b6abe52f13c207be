"""A ring buffer in the shared memory of a GPU, which is refilled as its rows are read."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.base import Array
from resjax.kernels.mosaic_gpu import row_ops
from resjax.kernels.mosaic_gpu.row_ops import Row
from resjax.kernels.operation import Ref


@dataclasses.dataclass(frozen=True)
class Stream:
  """Where a row of each token lies in global memory.

  Attributes:
    row: function token -> reference of the row [D / 128, 128].
    valid: whether there is a row; None if there always is.
  """

  row: Callable[[Array], Ref]
  valid: Array | None = None


def when(valid: Array | None, function: Callable) -> None:
  """Calls a function if `valid` holds, or always if it is None."""
  if valid is None:
    function()
  else:
    pl.when(valid)(function)


@dataclasses.dataclass(frozen=True)
class Ring:
  """R rows of shared memory through which the rows of a program's tokens pass in order.

  A token has a row in each of P streams, at positions 0 to P − 1. Position j of the program's token
  number `step` lies in row (step · P + j) mod R. After its last use it is released: then the row R
  positions later is copied to its place. Rows of streams that are not valid are not copied and must
  not be waited for, but they are released.

  Attributes:
    rows: reference [R, D / 128, 128] in shared memory.
    barriers: reference to one barrier per row.
    streams: the P streams.
    token: function step -> token.
    steps: number of tokens of the program.
  """

  rows: Ref
  barriers: Ref
  streams: tuple[Stream, ...]
  token: Callable[[Array], Array]
  steps: Array

  def start(self) -> None:
    """Starts the copies of the first R rows."""
    for ahead in range(self.rows.shape[0]):
      self._fetch(jnp.int32(0), ahead)

  def wait(self, step: Array, position: int) -> None:
    """Waits until the row of a valid position has arrived."""
    plgpu.barrier_wait(self.barriers.at[self._place(step, position)])

  def load(self, step: Array, position: int) -> Row:
    """Reads the row of a position that has arrived."""
    return row_ops.load(self.at(step, position))

  def load_part(self, step: Array, position: int, index: Array | int) -> Array:
    """Reads a part of the row of a position that has arrived."""
    return row_ops.load_part(self.at(step, position), index)

  def at(self, step: Array, position: int) -> Ref:
    """Returns the reference of the row of a position that has arrived."""
    return self.rows.at[self._place(step, position)]

  def store(self, step: Array, position: int, row: Row) -> None:
    """Replaces the row of a position that has arrived."""
    row_ops.store(self.at(step, position), row)

  def release(self, step: Array, positions: range) -> None:
    """Waits until no thread needs the rows of some positions any more, and refills their places."""
    row_ops.synchronize()
    self.refill(step, positions)

  def refill(self, step: Array, positions: range) -> None:
    """Copies the next rows to the places of some positions, which no thread needs any more."""
    for position in positions:
      self._fetch(step, position + self.rows.shape[0])

  def _place(self, step: Array, position: int) -> Array:
    rows, streams = self.rows.shape[0], len(self.streams)
    if rows % streams == 0:
      return lax.rem(step, jnp.int32(rows // streams)) * streams + position
    return lax.rem(step * streams + position, jnp.int32(rows))

  def _fetch(self, step: Array, position: int) -> None:
    """Starts to copy the row of a position; a position of P or more is one of a later token."""
    later, position = divmod(position, len(self.streams))
    step, stream = step + later, self.streams[position]

    def copy() -> None:
      place = self._place(step, position)
      source = stream.row(self.token(step))
      plgpu.copy_gmem_to_smem(source, self.rows.at[place], self.barriers.at[place])

    exists = step < self.steps
    when(exists if stream.valid is None else exists & stream.valid, copy)
