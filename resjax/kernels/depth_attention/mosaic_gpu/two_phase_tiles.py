"""Tile sizes of both phases of two-phase depth attention on NVIDIA GPUs.

In all functions `like` is the shape [..., D] and dtype of a source.
"""

import jax

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

# Rows that are summed together: in phase 1 the products of two reads with a full group of sources,
# in a merge as few as are possible.
_BLOCK_SUMS, _MERGE_SUMS = 2 * MAX_GROUP, 4


def forward_numbers(num_reads: int) -> tuple[int, ...]:
  """Returns the sizes of `_Numbers` in block_forward.py, as numbers of float32."""
  rows = pairs.num_rows(num_reads)
  return 3 * rows * MAX_SOURCES, MAX_SOURCES, MAX_SOURCES, rows


def backward_numbers(num_reads: int) -> tuple[int, ...]:
  """Returns the sizes of `_Numbers` in block_backward.py, as numbers of float32."""
  rows = pairs.num_rows(num_reads)
  return 3 * rows * MAX_SOURCES, MAX_SOURCES, rows, rows


def choose_forward(like: jax.ShapeDtypeStruct, num_slots: int, num_reads: int) -> GpuTiles | None:
  """Returns the tile sizes of phase 1, or None if the sources of a token do not fit.

  The ring holds the sources of at most two tokens, because more rows would take space from the
  first-level cache, which the queries need.
  """
  numbers, group = forward_numbers(num_reads), even(num_slots, MAX_GROUP)
  for programs, stay in ((MAX_PROGRAMS, 3 * num_slots // 2), (1, num_slots)):
    rows = min(MAX_ROWS, fitting_rows(like, _BLOCK_SUMS, numbers, 1, programs))
    if rows >= max(stay, group + 1):
      rows = min(rows, max(2 * num_slots, 2))
      return GpuTiles(rows, group, _BLOCK_SUMS, programs, numbers)
  return None


def choose_backward(
  like: jax.ShapeDtypeStruct, num_slots: int, num_reads: int, threaded: bool
) -> GpuTiles | None:
  """Returns the tile sizes of the reverse pass of phase 1, or None if a token does not fit.

  There is a ring for the sources, one for the cotangents of the outputs, and if `threaded` one for
  the cotangents that later reads left. The second holds all outputs of a token, the third a group
  of sources. The first holds all sources of a token if they fit; otherwise they are loaded twice.
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


def choose_merge(
  like: jax.ShapeDtypeStruct, num_streams: int, numbers: tuple[int, ...] = ()
) -> GpuTiles | None:
  """Returns the tile sizes of a merge, or None if a token does not fit.

  A token has `num_streams` rows; `numbers` are sizes of further shared memory in float32.
  """
  for programs, stay in ((MAX_PROGRAMS, 2 * num_streams), (1, num_streams)):
    rows = fitting_rows(like, _MERGE_SUMS, numbers, 1, programs)
    if rows >= stay:
      return GpuTiles(min(rows, 4 * num_streams), 1, _MERGE_SUMS, programs, numbers)
  return None


def _spread(rows: int, least: tuple[int, ...], most: tuple[int, ...]) -> tuple[int, ...]:
  """Returns sizes of rings: up to `rows` are dealt out in turn, each ring between its bounds."""
  sizes, spare = list(least), rows - sum(least)
  for _ in range(MAX_ROWS):
    for ring, bound in enumerate(most[: len(least)]):
      if spare and sizes[ring] < min(bound, MAX_ROWS):
        sizes[ring] += 1
        spare -= 1
  return tuple(sizes)
