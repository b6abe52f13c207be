"""Tile sizes of the direct read on NVIDIA GPUs.

In all functions `like` is the shape [..., D] and dtype of a source, and `room` is the shared memory
of a streaming multiprocessor (SM) in bytes, see `tiles.room_of`.
"""

import jax

from resjax.kernels.mosaic_gpu import MAX_ROWS, GpuTiles, tiles
from resjax.kernels.operation import LANES

_NUMBERS = (3 * LANES,)  # three numbers per source
# Registers of a thread that may hold sources between the two times that a forward pass uses them.
HELD_REGISTERS = 64
# Up to so many channels a thread of the reverse pass takes so few registers that three programs run
# at a time: at D = 2048 and N = 8 it takes 203 µs on an H200, and 243 µs with two.
_THREE_PROGRAMS = 2048


def choose_forward(
  like: jax.ShapeDtypeStruct, num_slots: int, num_streams: int, room: int
) -> GpuTiles | None:
  """Returns the tile sizes of the forward pass, which takes two sums per source.

  A group is at most half of the ring, so that the other half can be filled while it is read. None
  if two rows do not fit. A token has `num_streams` rows in the ring.
  """
  programs = tiles.most_programs(like)
  rows = tiles.fitting_rows(like, 8, _NUMBERS, 1, programs, room)
  held = min(tiles.MAX_GROUP, HELD_REGISTERS * LANES // like.shape[-1])
  group = tiles.even(num_slots, max(1, min(max(4, held), rows // 2)))
  sums = tiles.rounded(2 * group)
  return _tiles(like, group, (group + 1,), (num_streams,), sums, room, _NUMBERS, programs)


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
  programs = max(tiles.most_programs(like), 3 if like.shape[-1] <= _THREE_PROGRAMS else 1)
  tokens = num_slots + 1, num_slots
  for part in (1, 2, 4) if num_slots < MAX_ROWS else ():
    group = tiles.even(num_slots, tiles.MAX_GROUP // part)
    least = (num_slots + 1, group)[: 1 + threaded]
    if kept := _tiles(like, group, least, tokens, tiles.rounded(group), room, numbers, programs):
      return kept
  rows = tiles.fitting_rows(like, 8, numbers, 1 + threaded, programs, room)
  group = tiles.even(num_slots, max(1, min(tiles.MAX_GROUP, rows // (2 + threaded))))
  least = (group + 1, group)[: 1 + threaded]
  return _tiles(like, group, least, tokens, tiles.rounded(group), room, numbers, programs)


def _tiles(
  like: jax.ShapeDtypeStruct,
  group: int,
  least: tuple[int, ...],
  tokens: tuple[int, ...],
  summed_rows: int,
  room: int,
  numbers: tuple[int, ...],
  most: int,
) -> GpuTiles | None:
  """Returns tiles for as many programs as have room for rings of `least` rows; None if none has.

  Rings of several programs hold up to two tokens: what is left of the memory is cache.
  """
  for programs in range(most, 0, -1):
    rows = tiles.fitting_rows(like, summed_rows, numbers, len(least), programs, room)
    if rows >= sum(least):
      bounds = tuple(2 * token if programs > 1 else MAX_ROWS for token in tokens)
      first, *others = tiles.spread(rows, least, bounds, tokens, programs)
      return GpuTiles(first, group, summed_rows, programs, numbers, tuple(others))
  return None
