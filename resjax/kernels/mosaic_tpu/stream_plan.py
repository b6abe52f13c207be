"""How the tokens of R streams are cut into tiles."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from resjax.base import Array, PyTree
from resjax.kernels.mosaic_tpu import call
from resjax.kernels.mosaic_tpu.columns import TOKENS
from resjax.kernels.operation import Options


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

  def whole(self, arrays: PyTree) -> PyTree:
    """Returns the specs of arrays that stay on the chip, once, as nothing is moved in turn."""

    def spec(x: Array) -> pl.BlockSpec:
      return pl.BlockSpec(x.shape, lambda p, i: (0,) * x.ndim, pipeline_mode=pl.Buffered(1))

    return jax.tree.map(spec, arrays)

  def summed(self, arrays: PyTree) -> tuple[PyTree, PyTree]:
    """Returns the shapes float32 [parts, ...] and the specs of sums over the tiles of each part.

    `arrays` have the shapes of the sums.
    """
    mode = pl.Buffered(1)

    def shape(x: Array) -> jax.ShapeDtypeStruct:
      return self.like(self.grid[0], *x.shape, dtype=jnp.float32)

    def spec(x: Array) -> pl.BlockSpec:
      return pl.BlockSpec((None, *x.shape), lambda p, i: (p, *(0,) * x.ndim), pipeline_mode=mode)

    return jax.tree.map(shape, arrays), jax.tree.map(spec, arrays)

  def run(self, read: Options, kernel: Callable[..., None], *given: Any, **options: Any) -> PyTree:
    """Runs a kernel once per tile of `grid`, or of another one; see `call.over_tiles`."""
    return call.over_tiles(read, kernel, *given, **{"grid": self.grid, **options})
