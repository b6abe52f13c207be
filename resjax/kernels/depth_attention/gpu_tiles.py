"""Tile sizes of depth attention on NVIDIA GPUs, and the shared memory that they take."""

import dataclasses

import jax.numpy as jnp

from resjax.typing import Array

# Of an SM of compute capability 9.0 and 10.0, in bytes; a program, one warpgroup, may have all of
# the shared memory but what the driver keeps of it.
SHARED_BYTES = 227 * 1024
DRIVER_BYTES = 1024
REGISTERS = 65536
THREADS = 128
MAX_PROGRAMS = 8
MAX_ROWS = 32  # barriers that one reference may hold


@dataclasses.dataclass(frozen=True)
class GpuTiles:
  """How a kernel is cut into programs; each works on one row of D channels at a time.

  Attributes:
    rows: rows of shared memory through which a program's sources pass, 2 to 32.
    programs_per_sm: programs that run on a streaming multiprocessor at a time, at least 1.

  Raises:
    ValueError: a size is not allowed.
  """

  rows: int
  programs_per_sm: int

  def __post_init__(self):
    if not 2 <= self.rows <= MAX_ROWS:
      raise ValueError(f"GpuTiles.rows={self.rows}; allowed are 2 to {MAX_ROWS}")
    if not 1 <= self.programs_per_sm <= MAX_PROGRAMS:
      raise ValueError(
        f"GpuTiles.programs_per_sm={self.programs_per_sm}; allowed are 1 to {MAX_PROGRAMS}"
      )

  def shared_bytes(self, like: Array) -> int:
    """Returns the bytes of shared memory of one program.

    Args:
      like: an array [..., D] of the shape and dtype of a source.
    """
    return self.rows * row_bytes(like) + self.rows * 8 + FIXED_BYTES


# Three numbers per source for the second sweep of the reverse pass, and what reductions over the
# four warps take, at most.
FIXED_BYTES = 3 * 128 * 4 + 2048


def row_bytes(like: Array) -> int:
  """Returns the bytes of one source of one token."""
  return like.shape[-1] * jnp.dtype(like.dtype).itemsize


def choose_forward(like: Array) -> GpuTiles:
  """Returns the tile sizes of the forward pass: a thread holds its share of three rows."""
  return choose(like, kept_rows=2, registers=40 + 3 * like.shape[-1] // THREADS)


def choose_backward(like: Array, num_slots: int) -> GpuTiles:
  """Returns the tile sizes of the reverse pass: a thread holds its share of four rows.

  The cotangent of the output and all sources of a token stay in shared memory if they fit;
  otherwise sources are read once for every sweep over them.
  """
  kept_rows = num_slots + 1
  kept_rows = kept_rows if kept_rows <= rows_that_fit(like) else 2
  return choose(like, kept_rows=kept_rows, registers=64 + 4 * like.shape[-1] // THREADS)


def choose(like: Array, *, kept_rows: int, registers: int) -> GpuTiles:
  """Returns the tile sizes by which most rows are under way.

  As many programs share an SM as its registers allow, for one waits while another computes; what
  shared memory then remains for a program holds its ring. If that is too small for the rows that
  must stay, there are fewer programs.

  Args:
    like: an array [..., D] of the shape and dtype of a source.
    kept_rows: rows that a program needs at the same time.
    registers: of a thread.

  Raises:
    ValueError: one program does not fit.
  """
  most = min(MAX_PROGRAMS, REGISTERS // (THREADS * min(registers, 255)))
  for programs in range(max(most, 1), 0, -1):
    rows = rows_that_fit(like, programs)
    if rows >= max(kept_rows, 2):
      return GpuTiles(rows, programs)
  raise ValueError(
    f"{kept_rows} rows of {row_bytes(like)} bytes do not fit into the {SHARED_BYTES} bytes of "
    "shared memory"
  )


def rows_that_fit(like: Array, programs_per_sm: int = 1) -> int:
  """Returns how many rows a program may have in shared memory; at most 32."""
  shared = SHARED_BYTES + DRIVER_BYTES
  free = shared // programs_per_sm - DRIVER_BYTES - FIXED_BYTES
  return min(MAX_ROWS, free // (row_bytes(like) + 8))
