"""How the tokens of R streams are cut into tiles."""

import dataclasses
from typing import Any

import jax
from jax.experimental import pallas as pl

from resjax.base import Array
from resjax.kernels.mosaic_tpu.columns import TOKENS


@dataclasses.dataclass(frozen=True)
class StreamPlan:
  """Sizes of a kernel that has all streams of a tile of tokens on the chip.

  Attributes:
    num_streams: R.
    num_tokens: T of one device, a multiple of `TOKENS`.
    width: D.
    dtype: of the streams.
  """

  num_streams: int
  num_tokens: int
  width: int
  dtype: Any

  @property
  def most_parts(self) -> int:
    """Into how many parts the grid is cut where the tiles divide evenly."""
    raise NotImplementedError

  @property
  def grid(self) -> tuple[int, int]:
    """Parts that may run on cores of their own, and the number of tiles in each."""
    tiles = self.num_tokens // TOKENS
    parts = 1 if tiles % self.most_parts else self.most_parts
    return parts, tiles // parts

  def tile(self, part: Array, step: Array) -> Array:
    """Returns the index of the tile at a step of a part of the grid."""
    return part * self.grid[1] + step

  def streams(self, buffers: int) -> pl.BlockSpec:
    """Returns tiles of streams [R, T, D]."""
    shape, mode = (self.num_streams, TOKENS, self.width), pl.Buffered(buffers)
    return pl.BlockSpec(shape, lambda p, i: (0, self.tile(p, i), 0), pipeline_mode=mode)

  def tokens(self, buffers: int) -> pl.BlockSpec:
    """Returns tiles of [T, D]."""
    shape, mode = (TOKENS, self.width), pl.Buffered(buffers)
    return pl.BlockSpec(shape, lambda p, i: (self.tile(p, i), 0), pipeline_mode=mode)

  def like(self, *shape: int, dtype: Any = None) -> jax.ShapeDtypeStruct:
    """Returns the shape of an array in the dtype of the streams, or another one."""
    return jax.ShapeDtypeStruct(shape, self.dtype if dtype is None else dtype)


def whole_spec(shape: tuple[int, ...]) -> pl.BlockSpec:
  """Returns the spec of an array that stays on the chip, once, as nothing is moved in turn."""
  return pl.BlockSpec(shape, lambda p, i: (0,) * len(shape), pipeline_mode=pl.Buffered(1))


def summed_spec(shape: tuple[int, ...]) -> pl.BlockSpec:
  """Returns the spec of a sum over the tiles of a part, [parts, ...]."""
  mode = pl.Buffered(1)
  return pl.BlockSpec((None, *shape), lambda p, i: (p, *(0,) * len(shape)), pipeline_mode=mode)
