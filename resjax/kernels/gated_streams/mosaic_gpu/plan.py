"""Tile sizes of the kernels for gated reads."""

from resjax.kernels.gated_streams.operands import Operands, Read
from resjax.kernels.mosaic_gpu import MAX_ROWS, GpuTiles, choose_tiles

MAX_STREAMS = (MAX_ROWS - 1) // 2  # the reverse pass has 2 R + 1 rows of a token in a ring


def normalise_tiles(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the kernel that normalises, or None."""
  count = len(operands.streams)
  return choose_tiles(read, operands.like, count, count)


def mix_tiles(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the kernel that mixes, or None."""
  return choose_tiles(read, operands.like, 2 * len(operands.streams), 1)


def unmix_tiles(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the reverse pass of the mix, or None."""
  count = len(operands.streams)
  return choose_tiles(read, operands.like, 2 * count + 1, count)


def unnormalise_tiles(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the kernel that ends the reverse pass, or None."""
  count, width = len(operands.streams), operands.like.shape[-1]
  return choose_tiles(
    read, operands.like, 4 + (operands.inject is not None), 1, numbers=(count * width,)
  )
