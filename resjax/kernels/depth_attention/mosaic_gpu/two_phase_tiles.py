"""Tile sizes of the two phases on NVIDIA GPUs."""

from resjax.kernels.depth_attention.mosaic_gpu import pairs
from resjax.kernels.depth_attention.mosaic_gpu.pairs import MAX_SOURCES
from resjax.kernels.depth_attention.mosaic_gpu.tiles import (
  MAX_GROUP,
  MAX_PROGRAMS,
  MAX_ROWS,
  GpuTiles,
  even,
  fitting_rows,
)
from resjax.typing import Array

# Of a block: two reads with a full group of sources. Of a merge: what one sum needs.
_BLOCK_SUMS, _MERGE_SUMS = 2 * MAX_GROUP, 4


def forward_numbers(num_reads: int) -> tuple[int, ...]:
  """Numbers of a token in the forward pass: three tables, two per source, one per read."""
  rows = pairs.num_rows(num_reads)
  return 3 * rows * MAX_SOURCES, MAX_SOURCES, MAX_SOURCES, rows


def backward_numbers(num_reads: int) -> tuple[int, ...]:
  """Numbers of a token in the reverse pass: three tables, one per source, two per read."""
  rows = pairs.num_rows(num_reads)
  return 3 * rows * MAX_SOURCES, MAX_SOURCES, rows, rows


def choose_forward(like: Array, num_slots: int, num_reads: int) -> GpuTiles | None:
  """Returns the tile sizes of phase 1, or None where the sources of a token have no room.

  Two tokens are under way at most: more rows would take the first-level cache from the queries.
  """
  numbers, group = forward_numbers(num_reads), even(num_slots, MAX_GROUP)
  for programs, stay in ((MAX_PROGRAMS, 3 * num_slots // 2), (1, num_slots)):
    rows = min(MAX_ROWS, fitting_rows(like, _BLOCK_SUMS, numbers, 1, programs))
    if rows >= max(stay, group + 1):
      rows = min(rows, max(2 * num_slots, 2))
      return GpuTiles(rows, group, _BLOCK_SUMS, programs, numbers)
  return None


def choose_backward(like: Array, num_slots: int, num_reads: int, threaded: bool) -> GpuTiles | None:
  """Returns the tile sizes of the reverse pass of phase 1, or None where a token has no room.

  The cotangents of all reads of a token stay. So do its sources if they fit; else they are read
  twice. If `threaded`, a group of cotangents of sources is there too. The rings are those of the
  sources, of the reads and of these.
  """
  numbers, group = backward_numbers(num_reads), even(num_slots, MAX_GROUP)
  rings = 3 if threaded else 2
  least = (max(num_slots, group + 1), num_reads, group)[:rings]
  for programs, stay in ((MAX_PROGRAMS, 3 * sum(least) // 2), (1, sum(least))):
    rows = fitting_rows(like, _BLOCK_SUMS, numbers, rings, programs)
    if rows >= stay and max(least) <= MAX_ROWS:
      sizes = _spread(rows, least, (2 * least[0], 2 * num_reads, num_slots))
      return GpuTiles(sizes[0], group, _BLOCK_SUMS, programs, numbers, sizes[1:])
  most = min(group, (rows - num_reads - 1) // (rings - 1))
  if most < 1 or num_reads > MAX_ROWS:
    return None
  group = even(num_slots, most)
  sizes = _spread(rows, (group + 1, num_reads, group)[:rings], (num_slots, num_reads, num_slots))
  return GpuTiles(sizes[0], group, _BLOCK_SUMS, 1, numbers, sizes[1:])


def choose_merge(like: Array, num_streams: int, numbers: tuple[int, ...] = ()) -> GpuTiles | None:
  """Returns the tile sizes of a merge, or None where a token has no room.

  Args:
    like: an array [..., D] of the shape and dtype of the running sum.
    num_streams: rows of a token that are read.
    numbers: sizes of what else is in shared memory, in float32.
  """
  for programs, stay in ((MAX_PROGRAMS, 2 * num_streams), (1, num_streams)):
    rows = fitting_rows(like, _MERGE_SUMS, numbers, 1, programs)
    if rows >= stay:
      return GpuTiles(min(rows, 4 * num_streams), 1, _MERGE_SUMS, programs, numbers)
  return None


def _spread(rows: int, least: tuple[int, ...], most: tuple[int, ...]) -> tuple[int, ...]:
  """Returns sizes of rings that take up to `rows`, each between its bounds, in turn."""
  sizes, spare = list(least), rows - sum(least)
  for _ in range(MAX_ROWS):
    for ring, bound in enumerate(most[: len(least)]):
      if spare and sizes[ring] < min(bound, MAX_ROWS):
        sizes[ring] += 1
        spare -= 1
  return tuple(sizes)
