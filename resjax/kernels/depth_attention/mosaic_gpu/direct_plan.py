"""Tile sizes of the direct read on NVIDIA GPUs.

In all functions `like` is the shape [..., D] and dtype of a source, and `room` is the shared memory
of a streaming multiprocessor (SM) in bytes, see `tiles.room_of`.
"""

import jax

from resjax.kernels.mosaic_gpu import MAX_ROWS, GpuTiles, tiles
from resjax.kernels.operation import LANES

_NUMBERS = (3 * LANES,)  # three numbers per source


def choose_forward(like: jax.ShapeDtypeStruct, num_slots: int, room: int) -> GpuTiles | None:
  """Returns the tile sizes of the forward pass, which takes two sums per source.

  A group is at most half of the ring, so that the other half can be filled while it is read. None
  if two rows do not fit.
  """
  rows = tiles.fitting_rows(like, 8, _NUMBERS, 1, tiles.most_programs(like), room)
  group = tiles.even(num_slots, max(1, min(4, rows // 2)))
  return _tiles(like, group, (group + 1,), tiles.rounded(2 * group), room, _NUMBERS)


def choose_backward(
  like: jax.ShapeDtypeStruct, num_slots: int, threaded: bool, room: int, sums: int = 0
) -> GpuTiles | None:
  """Returns the tile sizes of the reverse pass, which takes one sum per source; None if none fit.

  The sources of a token and the cotangent of the output stay in shared memory if they fit;
  otherwise sources are loaded once for every walk over them. If `threaded`, there is a second ring
  for the cotangents that later reads left, which holds at least a group of them. `sums` float32
  numbers of sums over tokens are in shared memory too.
  """
  numbers = _NUMBERS + ((sums,) if sums else ())
  for part in (1, 2, 4) if num_slots < MAX_ROWS else ():
    group = tiles.even(num_slots, tiles.MAX_GROUP // part)
    least = (num_slots + 1, group)[: 1 + threaded]
    if kept := _tiles(like, group, least, tiles.rounded(group), room, numbers):
      return kept
  rows = tiles.fitting_rows(like, 8, numbers, 1 + threaded, tiles.most_programs(like), room)
  group = tiles.even(num_slots, max(1, min(tiles.MAX_GROUP, rows // (2 + threaded))))
  return _tiles(
    like, group, (group + 1, group)[: 1 + threaded], tiles.rounded(group), room, numbers
  )


def _tiles(
  like: jax.ShapeDtypeStruct,
  group: int,
  least: tuple[int, ...],
  summed_rows: int,
  room: int,
  numbers: tuple[int, ...],
) -> GpuTiles | None:
  """Returns tiles for as many programs as have room for rings of `least` rows; None if none has."""
  for programs in range(tiles.most_programs(like), 0, -1):
    rows = tiles.fitting_rows(like, summed_rows, numbers, len(least), programs, room)
    if rows >= sum(least):
      first, *others = tiles.spread(rows, least, (MAX_ROWS,) * len(least))
      return GpuTiles(first, group, summed_rows, programs, numbers, tuple(others))
  return None
