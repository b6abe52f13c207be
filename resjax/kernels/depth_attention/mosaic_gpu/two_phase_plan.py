"""Tile sizes of both phases of two-phase depth attention on NVIDIA GPUs.

In all functions `like` is the shape [..., D] and dtype of a source, and `room` is the shared memory
of a streaming multiprocessor in bytes, see `tiles.room_of`.
"""

import jax

from resjax.kernels.depth_attention.mosaic_gpu import pairs
from resjax.kernels.depth_attention.mosaic_gpu.pairs import MAX_SOURCES
from resjax.kernels.mosaic_gpu import MAX_ROWS, GpuTiles, tiles

# Rows that are summed together: in phase 1 the products of two reads with a full group of sources,
# in a merge as few as are possible.
_BLOCK_SUMS, _MERGE_SUMS = 2 * tiles.MAX_GROUP, 4
# The reverse pass of phase 1 takes the registers of several reads, also of narrow rows.
_BACKWARD_PROGRAMS = 3


def forward_numbers(num_reads: int) -> tuple[int, ...]:
  """Returns the sizes of `_Numbers` in block_forward.py, as numbers of float32."""
  rows = pairs.num_rows(num_reads)
  return 3 * rows * MAX_SOURCES, MAX_SOURCES, MAX_SOURCES, rows


def backward_numbers(num_reads: int, width: int) -> tuple[int, ...]:
  """Returns the sizes of `_Numbers` in block_backward.py, as numbers of float32.

  The last one, `width` per read, is that of the sums over tokens of the cotangents of the queries;
  with a width of 0 they are in global memory.
  """
  rows = pairs.num_rows(num_reads)
  sums = (num_reads * width,) if width else ()
  return 3 * rows * MAX_SOURCES, MAX_SOURCES, rows, rows, *sums


def choose_forward(
  like: jax.ShapeDtypeStruct, num_slots: int, num_reads: int, room: int
) -> GpuTiles | None:
  """Returns the tile sizes of phase 1, or None if the sources of a token do not fit.

  The ring holds the sources of at most two tokens, because more rows would take space from the
  first-level cache, which the queries need.
  """
  numbers, group = forward_numbers(num_reads), tiles.even(num_slots, tiles.MAX_GROUP)
  for programs in range(tiles.most_programs(like), 0, -1):
    stay = max(3 * num_slots // 2 if programs > 1 else num_slots, group + 1)
    rows = min(MAX_ROWS, tiles.fitting_rows(like, _BLOCK_SUMS, numbers, 1, programs, room))
    if rows >= stay:
      rows = min(rows, max(2 * num_slots, 2))
      return GpuTiles(rows, group, _BLOCK_SUMS, programs, numbers)
  return None


def choose_backward(
  like: jax.ShapeDtypeStruct, num_slots: int, num_reads: int, threaded: bool, room: int
) -> GpuTiles | None:
  """Returns the tile sizes of the reverse pass of phase 1, or None if a token does not fit.

  There is a ring for the sources, one for the cotangents of the outputs, and if `threaded` one for
  the cotangents that later reads left. The second holds all outputs of a token, the third a group
  of sources. The first holds all sources of a token if they fit; otherwise they are loaded twice.
  The sums of the cotangents of the queries are in shared memory too, if there is room for them
  beside the sources.
  """
  group, width = tiles.even(num_slots, tiles.MAX_GROUP), like.shape[-1]
  rings = 3 if threaded else 2
  least = (max(num_slots, group + 1), num_reads, group)[:rings]
  if max(least) <= MAX_ROWS:
    for numbers in (backward_numbers(num_reads, width), backward_numbers(num_reads, 0)):
      for programs in range(min(_BACKWARD_PROGRAMS, tiles.most_programs(like)), 0, -1):
        rows = tiles.fitting_rows(like, _BLOCK_SUMS, numbers, rings, programs, room)
        if rows >= (3 * sum(least) // 2 if programs > 1 else sum(least)):
          bounds = 2 * least[0], 2 * num_reads, num_slots
          sizes = tiles.spread(rows, least, bounds, (num_slots, num_reads, num_slots), programs)
          return GpuTiles(sizes[0], group, _BLOCK_SUMS, programs, numbers, sizes[1:])
  numbers = backward_numbers(num_reads, 0)
  rows = tiles.fitting_rows(like, _BLOCK_SUMS, numbers, rings, 1, room)
  most = min(group, (rows - num_reads - 1) // (rings - 1))
  if most < 1 or num_reads > MAX_ROWS:
    return None
  group = tiles.even(num_slots, most)
  tokens = num_slots, num_reads, num_slots
  sizes = tiles.spread(rows, (group + 1, num_reads, group)[:rings], tokens, tokens, 1)
  return GpuTiles(sizes[0], group, _BLOCK_SUMS, 1, numbers, sizes[1:])


def choose_merge(
  like: jax.ShapeDtypeStruct, num_streams: int, room: int, numbers: tuple[int, ...] = ()
) -> GpuTiles | None:
  """Returns the tile sizes of a merge, or None if a token does not fit.

  A token has `num_streams` rows; `numbers` are sizes of further shared memory in float32.
  """
  for programs in range(tiles.most_programs(like), 0, -1):
    rows = tiles.fitting_rows(like, _MERGE_SUMS, numbers, 1, programs, room)
    if rows >= (2 * num_streams if programs > 1 else num_streams):
      rows = tiles.whole(min(rows, 4 * num_streams), num_streams, programs)
      return GpuTiles(rows, 1, _MERGE_SUMS, programs, numbers)
  return None
