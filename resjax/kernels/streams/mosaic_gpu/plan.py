"""The tile sizes of the kernels for streams."""

from resjax.base import Array
from resjax.kernels.mosaic_gpu import MAX_ROWS, GpuTiles, Ring, choose_tiles, row_ops
from resjax.kernels.streams.operands import Operands, Read

MAX_STREAMS = (MAX_ROWS - 2) // 3  # the reverse pass has 3 R + 2 rows of a token in a ring


def write_tiles(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the kernel that writes and, without φ, also mixes; or None."""
  count = len(operands.pending.streams)
  return choose_tiles(read, operands.like, count + 1, count)


def mix_tiles(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the kernel that mixes written streams, or None if nothing fits."""
  return choose_tiles(read, operands.like, len(operands.pending.streams), 1)


def unmix_tiles(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the reverse pass of the mix, or None."""
  count, gain = len(operands.pending.streams), operands.gain
  numbers = () if gain is None else (operands.like.shape[-1],)
  return choose_tiles(read, operands.like, count + 2, max(count, 2), numbers)


def unwrite_tiles(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the reverse pass of the write, or None."""
  count = len(operands.pending.streams)
  rows = 2 * count + 2 + count * (operands.projection is not None)
  return choose_tiles(read, operands.like, rows, count + 1)


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
  return list(
    row_ops.rounded(tuple(row_ops.weighted(row, sources) for row in rows), ring.rows.dtype)
  )


def source_parts(ring: Ring, step: Array, weights: list[Array], index: Array) -> list[Array]:
  """Returns a part of H and o, see `written_part`."""
  count = next(r for r in range(1, MAX_ROWS) if r * (r + 1) == len(weights))
  return [ring.load_part(step, position, index) for position in range(count + 1)]
