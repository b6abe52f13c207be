"""Tile sizes of depth attention on NVIDIA GPUs, and the shared memory that they take."""

import dataclasses
import math

import jax.numpy as jnp

from resjax.hardware.chips import GPU_CHIPS, GPU_DRIVER_BYTES
from resjax.kernels.depth_attention.mosaic_gpu.row_ops import LANES, WARPS, part_size
from resjax.typing import Array

# The kernels run on chips of compute capability 9.0 and 10.0, whose shared memory is equal.
SHARED_BYTES = GPU_CHIPS["NVIDIA H100"].shared_bytes
ALIGNMENT = 1024
# What the compiler sets aside for reductions.
REDUCTION_BYTES = 2048
# A thread may have 255 registers, an SM has 65536: so many warpgroups fit whatever they do.
MAX_PROGRAMS = 2
MAX_ROWS = 32  # barriers that one reference may hold
MAX_GROUP = 8
_NUMBERS = (3 * LANES,)  # three per source


@dataclasses.dataclass(frozen=True)
class GpuTiles:
  """How a kernel is cut into programs, each a warpgroup that works on one token at a time.

  Attributes:
    rows: rows of shared memory through which a program's sources pass, 2 to 32.
    group: sources whose sums over channels are taken together, 1 to 8 and below `rows`.
    summed_rows: rows that are summed together, a multiple of 4.
    programs_per_sm: programs that run on a streaming multiprocessor at a time, 1 or 2.
    numbers: sizes of the float32 arrays beside the rows and their sums.
    further_rows: rows of shared memory for what else passes through, each 1 to 32.

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

  def shared_bytes(self, like: Array) -> int:
    """Returns the bytes of shared memory of one program.

    Args:
      like: an array [..., D] of the shape and dtype of a source.
    """
    rings = self.rows, *self.further_rows
    fixed = _fixed_bytes(like, self.summed_rows, self.numbers, len(rings))
    return sum(rings) * row_bytes(like) + fixed


def row_bytes(like: Array) -> int:
  """Returns the bytes of one source of one token."""
  return like.shape[-1] * jnp.dtype(like.dtype).itemsize


def choose_forward(like: Array, num_slots: int) -> GpuTiles:
  """Returns the tile sizes of the forward pass, with two sums per source.

  Half of the ring is under way while the other half is read, if there are that many rows.
  """
  group = even(num_slots, min(4, _rows(like, 8, MAX_PROGRAMS) // 2))
  return _tiles(like, group, kept_rows=group + 1, summed_rows=_rounded(2 * group))


def choose_backward(like: Array, num_slots: int) -> GpuTiles:
  """Returns the tile sizes of the reverse pass, with one sum per source.

  The sources of a token and the cotangent of the output stay in shared memory if they fit;
  otherwise sources are read once for every sweep over them.
  """
  kept_rows = num_slots + 1
  if kept_rows > _rows(like, 8, programs=1):
    group = even(num_slots, min(MAX_GROUP, _rows(like, 8, MAX_PROGRAMS) // 2))
    return _tiles(like, group, kept_rows=group + 1, summed_rows=_rounded(group))
  group = even(num_slots, MAX_GROUP)
  return _tiles(like, group, kept_rows=kept_rows, summed_rows=_rounded(group))


def _tiles(like: Array, group: int, *, kept_rows: int, summed_rows: int) -> GpuTiles:
  """Returns tiles for as many programs as have the rows that must stay."""
  fitting = [_rows(like, summed_rows, programs) for programs in range(1, MAX_PROGRAMS + 1)]
  programs = max(i + 1 for i, rows in enumerate(fitting) if i == 0 or rows >= kept_rows)
  return GpuTiles(fitting[programs - 1], group, summed_rows, programs)


def _rows(like: Array, summed_rows: int, programs: int) -> int:
  """Returns how many rows of one ring each of the programs of an SM may have."""
  return min(MAX_ROWS, fitting_rows(like, summed_rows, _NUMBERS, 1, programs))


def fitting_rows(
  like: Array, summed_rows: int, numbers: tuple[int, ...], rings: int, programs: int
) -> int:
  """Returns how many rows each of the programs of an SM has room for in shared memory."""
  free = SHARED_BYTES // programs - GPU_DRIVER_BYTES
  free -= _fixed_bytes(like, summed_rows, numbers, rings)
  return max(0, free // row_bytes(like))


def _fixed_bytes(like: Array, summed_rows: int, numbers: tuple[int, ...], rings: int) -> int:
  """Returns what a program takes beside its rows."""
  terms = (
    summed_rows * part_size(like.shape[-1] // LANES) * LANES * 4,  # `Sums.parts`
    summed_rows * 4,  # `Sums.totals`
    *(size * 4 for size in numbers),
    rings * MAX_ROWS * 8,  # barriers
    REDUCTION_BYTES,
    ALIGNMENT,
  )
  return sum(math.ceil(size / ALIGNMENT) * ALIGNMENT for size in terms)


def even(count: int, most: int) -> int:
  """Returns the size of the fewest groups of at most `most` that hold `count`, evenly filled."""
  return math.ceil(count / math.ceil(count / most))


def _rounded(rows: int) -> int:
  return math.ceil(rows / WARPS) * WARPS
