"""Rows on their way through the shared memory of a GPU: a ring that is refilled as it is read."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.typing import Array

LANES = 128  # also the threads of a warpgroup, which works on one row at a time


def row_layout(groups: int) -> plgpu.Layout:
  """Returns how the threads of a warpgroup share a row [D / 128, 128], whatever its dtype."""
  vec_size = next(size for size in (4, 2, 1) if groups % size == 0)
  return plgpu.Layout.WG_STRIDED((groups, LANES), vec_size=vec_size)


def load_row(ref: Any, *index: Array | int) -> Array:
  """Reads a row [D / 128, 128] of shared or global memory into registers, in float32."""
  view = ref.at[index] if index else ref
  return plgpu.layout_cast(view[...], row_layout(view.shape[0])).astype(jnp.float32)


def zero_row(groups: int) -> Array:
  """Returns zeros [D / 128, 128] in registers."""
  return plgpu.layout_cast(jnp.zeros((groups, LANES), jnp.float32), row_layout(groups))


@dataclasses.dataclass(frozen=True)
class Segment:
  """Consecutive positions of the rows that a program reads for a token.

  Attributes:
    source: reference of [T, D / 128, 128], one position, or of [N, T, D / 128, 128], N positions.
    num_valid: how many of the positions, from the first on, hold a row; None: all.
  """

  source: Any
  num_valid: Array | None = None

  @property
  def size(self) -> int:
    """Number of positions."""
    return self.source.shape[0] if len(self.source.shape) == 4 else 1

  def row(self, index: Array | int, token: Array) -> Any:
    """Returns the reference of a row."""
    return self.source.at[token] if len(self.source.shape) == 3 else self.source.at[index, token]


@dataclasses.dataclass(frozen=True)
class Ring:
  """R rows of shared memory through which the rows of a program's tokens pass in order.

  Position j of the program's token number `step` lies in row (step · P + j) mod R, P the positions
  of a token. Whoever has done with it releases it: then the row R positions later is copied there.

  Attributes:
    rows: [R, D / 128, 128] in shared memory.
    barriers: one per row.
    segments: what a token's positions hold, P in all.
    token: step -> token.
    steps: number of the program's tokens.
  """

  rows: Any
  barriers: Any
  segments: tuple[Segment, ...]
  token: Callable[[Array], Array]
  steps: Array

  @property
  def positions(self) -> int:
    """P."""
    return sum(segment.size for segment in self.segments)

  @property
  def size(self) -> int:
    """R."""
    return self.rows.shape[0]

  def start(self) -> None:
    """Fills the ring."""
    positions = jnp.int32(self.positions)

    def fetch(ahead, _):
      self._fetch(lax.div(ahead, positions), lax.rem(ahead, positions))

    lax.fori_loop(jnp.int32(0), jnp.int32(self.size), fetch, None)

  def wait(self, step: Array, position: Array | int) -> None:
    """Waits until the row of a position that is valid has arrived."""
    plgpu.barrier_wait(self.barriers.at[self._place(step, position)])

  def load(self, step: Array, position: Array | int) -> Array:
    """Reads the row of a position, [D / 128, 128], that has arrived."""
    return load_row(self.rows, self._place(step, position))

  def release(self, step: Array, position: Array | int) -> None:
    """Gives up the row of a position, valid or not, once all threads have read it."""
    plgpu.commit_smem()
    ahead = position + self.size
    if isinstance(ahead, int):
      self._fetch(step + ahead // self.positions, ahead % self.positions)
    else:
      positions = jnp.int32(self.positions)
      self._fetch(step + lax.div(ahead, positions), lax.rem(ahead, positions))

  def _place(self, step, position):
    return lax.rem(step * self.positions + position, jnp.int32(self.size))

  def _fetch(self, step, position) -> None:
    starts = [sum(s.size for s in self.segments[:i]) for i in range(len(self.segments))]

    @pl.when(step < self.steps)
    def _():
      copies = [
        functools.partial(self._copy, segment, start, step)
        for segment, start in zip(self.segments, starts, strict=True)
      ]
      if isinstance(position, int):
        copies[sum(start <= position for start in starts) - 1](position)
      else:
        index = sum(jnp.int32(start <= position) for start in starts) - 1
        lax.switch(index, copies, position)

  def _copy(self, segment: Segment, start: int, step, position) -> None:
    index, place = position - start, self._place(step, position)

    def copy():
      source = segment.row(index, self.token(step))
      plgpu.copy_gmem_to_smem(source, self.rows.at[place], self.barriers.at[place])

    if segment.num_valid is None:
      copy()
    else:
      pl.when(index < segment.num_valid)(copy)
