"""Tile sizes of kernels for NVIDIA GPUs, and the shared memory that tiles take.

In all functions `like` is the shape [..., D] and dtype of a source, and `room` is the shared memory
of a streaming multiprocessor (SM) in bytes, see `room_of`.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from resjax.base.hardware import GPU_CHIPS, GPU_DRIVER_BYTES
from resjax.kernels.mosaic_gpu.row_ops import WARPS, part_size
from resjax.kernels.operation import LANES, Options

# For an H100 a kernel is lowered where there is no GPU; a B200 has as much.
H100_ROOM = GPU_CHIPS["NVIDIA H100"].shared_bytes
ALIGNMENT = 1024
# What the compiler sets aside for reductions.
REDUCTION_BYTES = 2048
# A thread may have 255 registers and an SM has 65536: two programs of 128 threads always fit. Rows
# of up to _NARROW channels take so few registers that more do; the compiled kernels are held to it.
MAX_PROGRAMS = 4
_WIDE_PROGRAMS, _NARROW = 2, 768
MAX_ROWS = 32  # barriers that one reference may hold
MAX_GROUP = 8


@dataclasses.dataclass(frozen=True)
class GpuTiles:
  """How a kernel is cut into programs, each a warpgroup that works on one token at a time.

  Attributes:
    rows: number of rows of the ring through which a program's sources pass, 2 to 32.
    group: number of sources whose sums over channels are taken together, 1 to 8 and below `rows`.
    summed_rows: number of rows that are summed together, a multiple of 4.
    programs_per_sm: number of programs that run on a streaming multiprocessor (SM) at a time, 1 to
      4.
    numbers: sizes of the float32 arrays in shared memory beside the rows and their sums.
    further_rows: numbers of rows of further rings, each 1 to 32.

  Raises:
    ValueError: a size is not allowed.
  """

  rows: int
  group: int
  summed_rows: int
  programs_per_sm: int
  numbers: tuple[int, ...] = ()
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


def room_of(options: Options) -> int:
  """Returns the shared memory of an SM of the GPU that runs a kernel, which itself tells."""
  program = getattr(options.layout.device, "shared_memory_per_block_optin", None)
  return H100_ROOM if program is None else program + GPU_DRIVER_BYTES


def most_programs(like: jax.ShapeDtypeStruct) -> int:
  """Returns how many programs at most run on an SM at a time, by their registers."""
  return MAX_PROGRAMS if like.shape[-1] <= _NARROW else _WIDE_PROGRAMS


def choose_tiles(
  options: Options,
  like: jax.ShapeDtypeStruct,
  rows: int,
  sums: int,
  numbers: tuple[int, ...] = (),
) -> GpuTiles | None:
  """Returns the tile sizes of a kernel, or None if a token does not fit.

  Args:
    options: the GPU is that of their layout.
    like: shape [..., D] and dtype of a row.
    rows: number of rows of a token that pass through the ring.
    sums: number of sums over channels that are taken together.
    numbers: sizes of further float32 arrays in shared memory.
  """
  summed, room = rounded(sums), room_of(options)
  for programs in range(most_programs(like), 0, -1):
    fitting = min(MAX_ROWS, fitting_rows(like, summed, numbers, 1, programs, room))
    if fitting >= max(2, min(MAX_ROWS, 3 * rows // 2) if programs > 1 else rows):
      ring = max(2, whole(min(fitting, 3 * rows), rows, programs))
      return GpuTiles(ring, 1, summed, programs, numbers)
  return None


def whole(rows: int, token: int, programs: int, least: int = 1) -> int:
  """Returns the size of a ring of at most `rows` rows that holds whole tokens, if one may.

  The place of a row is then the same for every, or every second or third token: at D = 2048 and
  N = 8 a direct read takes 87 µs on an H200 with 16 rows in a ring, and 101 µs with 22. Where one
  program runs at a time, it takes all the rows, since nothing else hides its loads.

  Args:
    rows: the most rows.
    token: the rows of a token.
    programs: number of programs that run on a streaming multiprocessor at a time.
    least: the least rows.
  """
  fitting = rows - rows % token
  return fitting if programs > 1 and fitting >= least else rows


def spread(
  rows: int, least: tuple[int, ...], most: tuple[int, ...], tokens: tuple[int, ...], programs: int
) -> tuple[int, ...]:
  """Returns sizes of rings: up to `rows` are dealt out in turn, each ring between its bounds.

  Args:
    rows: the rows of all rings.
    least, most: the bounds of each ring, and more bounds.
    tokens: the rows of a token in each, and more.
    programs: number of programs that run on a streaming multiprocessor at a time.
  """
  sizes, spare = list(least), rows - sum(least)
  for _ in range(MAX_ROWS):
    for ring, bound in enumerate(most[: len(least)]):
      if spare and sizes[ring] < min(bound, MAX_ROWS):
        sizes[ring] += 1
        spare -= 1
  return tuple(
    whole(size, token, programs, bound)
    for size, token, bound in zip(sizes, tokens, least, strict=False)
  )


def fitting_rows(
  like: jax.ShapeDtypeStruct,
  summed_rows: int,
  numbers: tuple[int, ...],
  rings: int,
  programs: int,
  room: int,
) -> int:
  """Returns for how many rows, of all its rings, each of the programs of an SM has room."""
  free = room // programs - GPU_DRIVER_BYTES
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


def rounded(rows: int) -> int:
  """Returns a number of rows that are summed together, rounded up to what warps share evenly."""
  return math.ceil(rows / WARPS) * WARPS
