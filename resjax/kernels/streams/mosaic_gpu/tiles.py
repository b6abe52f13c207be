"""The tiles of the kernels for streams, and what a token needs of them."""

from collections.abc import Callable, Sequence

import jax
from jax import lax

from resjax.kernels.depth_attention.mosaic_gpu import row_ops
from resjax.kernels.depth_attention.mosaic_gpu import tiles as gpu_tiles
from resjax.kernels.depth_attention.mosaic_gpu.ring import Ring
from resjax.kernels.depth_attention.mosaic_gpu.row_ops import WARPS
from resjax.kernels.depth_attention.mosaic_gpu.tiles import MAX_ROWS, GpuTiles, LaunchOptions
from resjax.kernels.depth_attention.operands import Ref
from resjax.kernels.streams.operands import Operands, Read
from resjax.typing import Array

MAX_STREAMS = (MAX_ROWS - 2) // 3  # the reverse pass has 3 R + 2 rows of a token in a ring


def choose(
  read: LaunchOptions,
  like: jax.ShapeDtypeStruct,
  rows: int,
  sums: int,
  numbers: tuple[int, ...] = (),
) -> GpuTiles | None:
  """Returns the tile sizes of a kernel, or None if a token does not fit.

  Args:
    read: options.
    like: shape and dtype of a stream.
    rows: number of rows of a token that pass through the ring.
    sums: number of sums over channels that are taken together.
    numbers: sizes of further float32 arrays in shared memory.
  """
  summed, room = -(-sums // WARPS) * WARPS, gpu_tiles.room_of(read)
  for programs in range(gpu_tiles.most_programs(like), 0, -1):
    fitting = min(MAX_ROWS, gpu_tiles.fitting_rows(like, summed, numbers, 1, programs, room))
    if fitting >= max(2, min(MAX_ROWS, 3 * rows // 2) if programs > 1 else rows):
      return GpuTiles(max(2, min(fitting, 3 * rows)), 1, summed, programs, numbers)
  return None


def write_tiles(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the kernel that writes and, without φ, also mixes; or None."""
  count = len(operands.pending.streams)
  return choose(read, operands.like, count + 1, count)


def mix_tiles(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the kernel that mixes what another one has written; or None."""
  return choose(read, operands.like, len(operands.pending.streams), 1)


def unmix_tiles(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the reverse pass of the mix, or None."""
  count, gain = len(operands.pending.streams), operands.gain
  numbers = () if gain is None else (operands.like.shape[-1],)
  return choose(read, operands.like, count + 2, max(count, 2), numbers)


def unwrite_tiles(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the reverse pass of the write, or None."""
  count = len(operands.pending.streams)
  rows = 2 * count + 2 + count * (operands.projection is not None)
  return choose(read, operands.like, rows, count + 1)


def numbers_of(ref: Ref | None, token: Array) -> list[Array]:
  """Returns the numbers of a token in [T, n]; none if there is no such array."""
  return [] if ref is None else [ref[token, i] for i in range(ref.shape[1])]


def written_part(ring: Ring, step: Array, weights: list[Array], index: Array) -> list[Array]:
  """Returns a part of each new stream Σ_s M_rs H_s + b_r o, rounded to the dtype of the streams.

  Args:
    ring: has H and o of a token at its first positions, R + 1 of them.
    step: number of the token.
    weights: of the write, R (R + 1).
    index: number of the part.
  """
  sources = source_parts(ring, step, weights, index)
  rows = [weights[i : i + len(sources)] for i in range(0, len(weights), len(sources))]
  return list(row_ops.rounded(tuple(weighted(row, sources) for row in rows), ring.rows.dtype))


def source_parts(ring: Ring, step: Array, weights: list[Array], index: Array) -> list[Array]:
  """Returns a part of H and o, see `written_part`."""
  count = next(r for r in range(1, MAX_ROWS) if r * (r + 1) == len(weights))
  return [ring.load_part(step, position, index) for position in range(count + 1)]


def weighted(factors: Sequence[Array], parts: Sequence[Array]) -> Array:
  """Returns Σ_i factor_i part_i."""
  terms = [factor * part for factor, part in zip(factors, parts, strict=True)]
  return sum(terms[1:], terms[0])


def zeros(groups: int, count: int) -> tuple[Array, ...]:
  """Returns zeros to which a loop over the parts of rows adds."""
  return (row_ops.zeros(groups)[0],) * count


def each_part(groups: int, function: Callable, carry: tuple) -> tuple:
  """Calls carry = function(index, carry) for all parts of rows [groups, 128]."""
  return lax.fori_loop(0, row_ops.num_parts(groups), function, carry)
