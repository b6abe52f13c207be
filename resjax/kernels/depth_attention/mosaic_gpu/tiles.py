"""Tile sizes of the direct read on NVIDIA GPUs, and the shared memory that tiles take.

In all functions `like` is the shape [..., D] and dtype of a source.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from resjax.hardware.chips import GPU_CHIPS, GPU_DRIVER_BYTES
from resjax.kernels.depth_attention.mosaic_gpu.row_ops import LANES, WARPS, part_size

# The kernels run on chips of compute capability 9.0 and 10.0, whose shared memory is equal.
SHARED_BYTES = GPU_CHIPS["NVIDIA H100"].shared_bytes
ALIGNMENT = 1024
# What the compiler sets aside for reductions.
REDUCTION_BYTES = 2048
# A thread may have 255 registers and an SM has 65536: two programs of 128 threads always fit.
MAX_PROGRAMS = 2
MAX_ROWS = 32  # barriers that one reference may hold
MAX_GROUP = 8
_NUMBERS = (3 * LANES,)  # three numbers per source


@dataclasses.dataclass(frozen=True)
class GpuTiles:
  """How a kernel is cut into programs, each a warpgroup that works on one token at a time.

  Attributes:
    rows: number of rows of the ring through which a program's sources pass, 2 to 32.
    group: number of sources whose sums over channels are taken together, 1 to 8 and below `rows`.
    summed_rows: number of rows that are summed together, a multiple of 4.
    programs_per_sm: number of programs that run on a streaming multiprocessor (SM) at a time, 1 or
      2.
    numbers: sizes of the float32 arrays in shared memory beside the rows and their sums.
    further_rows: numbers of rows of further rings, each 1 to 32.

  Raises:
    ValueError: a size is not allowed.
  """

  rows: int
  group: int
  summed_rows: int
  programs_per_sm: int
  numbers: tuple[int, ...] = _NUMBERS
  further_rows: tuple[int, ...] = ()

  def __post_init__(self):
    allowed = {
      "rows": range(2, MAX_ROWS + 1),
      "group": range(1, min(MAX_GROUP, self.rows - 1) + 1),
      "summed_rows": range(WARPS, 2 * MAX_GROUP + 1, WARPS),
      "programs_per_sm": range(1, MAX_PROGRAMS + 1),
    }
    for name, values in allowed.items():
      if getattr(self, name) not in values:
        raise ValueError(
          f"GpuTiles.{name}={getattr(self, name)}; allowed are {values[0]} to {values[-1]}"
          f"{f' in steps of {values.step}' if values.step > 1 else ''}"
        )
    if not all(1 <= rows <= MAX_ROWS for rows in self.further_rows):
      raise ValueError(
        f"GpuTiles.further_rows={self.further_rows}; allowed are 1 to {MAX_ROWS} each"
      )

  def shared_bytes(self, like: jax.ShapeDtypeStruct) -> int:
    """Returns the bytes of shared memory of one program."""
    rings = self.rows, *self.further_rows
    fixed = _fixed_bytes(like, self.summed_rows, self.numbers, len(rings))
    return sum(rings) * row_bytes(like) + fixed


def row_bytes(like: jax.ShapeDtypeStruct) -> int:
  """Returns the bytes of a row: one source of one token."""
  return like.shape[-1] * jnp.dtype(like.dtype).itemsize


def choose_forward(like: jax.ShapeDtypeStruct, num_slots: int) -> GpuTiles:
  """Returns the tile sizes of the forward pass, which takes two sums per source.

  A group is at most half of the ring, so that the other half can be filled while it is read.
  """
  group = even(num_slots, min(4, _rows(like, 8, MAX_PROGRAMS) // 2))
  return _tiles(like, group, kept_rows=group + 1, summed_rows=_rounded(2 * group))


def choose_backward(like: jax.ShapeDtypeStruct, num_slots: int) -> GpuTiles:
  """Returns the tile sizes of the reverse pass, which takes one sum per source.

  The sources of a token and the cotangent of the output stay in shared memory if they fit;
  otherwise sources are loaded once for every walk over them.
  """
  kept_rows = num_slots + 1
  if kept_rows > _rows(like, 8, programs=1):
    group = even(num_slots, min(MAX_GROUP, _rows(like, 8, MAX_PROGRAMS) // 2))
    return _tiles(like, group, kept_rows=group + 1, summed_rows=_rounded(group))
  group = even(num_slots, MAX_GROUP)
  return _tiles(like, group, kept_rows=kept_rows, summed_rows=_rounded(group))


def _tiles(like: jax.ShapeDtypeStruct, group: int, *, kept_rows: int, summed_rows: int) -> GpuTiles:
  """Returns tiles for two programs per SM if each has room for `kept_rows`, else for one."""
  fitting = [_rows(like, summed_rows, programs) for programs in range(1, MAX_PROGRAMS + 1)]
  programs = max(i + 1 for i, rows in enumerate(fitting) if i == 0 or rows >= kept_rows)
  return GpuTiles(fitting[programs - 1], group, summed_rows, programs)


def _rows(like: jax.ShapeDtypeStruct, summed_rows: int, programs: int) -> int:
  """Returns how many rows a ring may have if `programs` of them share the SM."""
  return min(MAX_ROWS, fitting_rows(like, summed_rows, _NUMBERS, 1, programs))


def fitting_rows(
  like: jax.ShapeDtypeStruct, summed_rows: int, numbers: tuple[int, ...], rings: int, programs: int
) -> int:
  """Returns for how many rows, of all its rings, each of the programs of an SM has room."""
  free = SHARED_BYTES // programs - GPU_DRIVER_BYTES
  free -= _fixed_bytes(like, summed_rows, numbers, rings)
  return max(0, free // row_bytes(like))


def _fixed_bytes(
  like: jax.ShapeDtypeStruct, summed_rows: int, numbers: tuple[int, ...], rings: int
) -> int:
  """Returns the bytes that a program takes beside its rows."""
  terms = (
    summed_rows * part_size(like.shape[-1] // LANES) * LANES * 4,  # `ChannelSums.parts`
    summed_rows * 4,  # `ChannelSums.totals`
    *(size * 4 for size in numbers),
    rings * MAX_ROWS * 8,  # barriers
    REDUCTION_BYTES,
    ALIGNMENT,
  )
  return sum(math.ceil(size / ALIGNMENT) * ALIGNMENT for size in terms)


def even(count: int, most: int) -> int:
  """Returns the size of groups if `count` is split evenly into the fewest with at most `most`."""
  return math.ceil(count / math.ceil(count / most))


def _rounded(rows: int) -> int:
  return math.ceil(rows / WARPS) * WARPS
