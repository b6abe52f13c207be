"""What both kernels of phase 1 for TPUs share: their grid, and how they see a tile.

A tile of tokens is worked on in groups of `ROWS` tokens. Slots are taken in groups of `SLOTS`,
whose rows together are a matrix [SLOTS · ROWS, D]: row (n, t) is token t of slot n.
Numbers per read, source and token have the reads on rows and (n, t) on the lanes: [S, LANES].
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention import tpu_rows
from resjax.kernels.depth_attention.operands import Operands, Read
from resjax.kernels.depth_attention.tpu_rows import LANES, ROWS, SUBLANES, VMEM_LIMIT
from resjax.typing import Array

SLOTS = LANES // ROWS
_NN, _NT = (((1,), (0,)), ((), ())), (((1,), (1,)), ((), ()))


@dataclasses.dataclass(frozen=True)
class BlockPlan:
  """Sizes of phase 1 that are known when a kernel is traced.

  Attributes:
    num_tokens: T.
    width: D.
    num_reads: S.
    num_banked: N_max.
    num_recent: number of sources that are arrays of their own.
    dtype: of the sources.
    eps: added to mean squares.
    tokens: tokens per tile.
  """

  num_tokens: int
  width: int
  num_reads: int
  num_banked: int
  num_recent: int
  dtype: Any
  eps: float
  tokens: int

  @classmethod
  def of(cls, read: Read, operands: Operands, arrays: int) -> "BlockPlan":
    """Returns the plan for rows [T, D], with the largest tile that fits.

    Args:
      read: of the block.
      operands: of one device.
      arrays: number of arrays [T, D] that are on the chip.
    """
    like, num_recent = operands.like, len(operands.recent)
    num_tokens, width = math.prod(like.shape[:-1]), like.shape[-1]
    num_banked = operands.num_slots - num_recent
    sizes = num_tokens, width, len(operands.query), num_banked, num_recent
    per_token = 2 * arrays * width * like.dtype.itemsize  # two buffers of each
    fitting = (n for n in (128, 64, 32, ROWS) if n * per_token <= VMEM_LIMIT // 2)
    return cls(*sizes, like.dtype, read.eps, next(fitting, 0))

  @property
  def num_slots(self) -> int:
    """N, valid or not."""
    return self.num_banked + self.num_recent

  @property
  def padded_reads(self) -> int:
    """S up to whole registers."""
    return -(-self.num_reads // SUBLANES) * SUBLANES

  @property
  def num_groups(self) -> int:
    """Number of groups of slots."""
    return -(-self.num_slots // SLOTS)

  @property
  def num_tiles(self) -> int:
    """Number of tiles of tokens."""
    return -(-self.num_tokens // self.tokens)

  @property
  def grid(self) -> tuple[int, int]:
    """Parts that may run on cores of their own, tiles of each."""
    return tpu_rows.two_parts(self.num_tiles)

  @property
  def row_groups(self) -> int:
    """Number of groups of tokens, those of all tiles."""
    return self.num_tiles * self.tokens // ROWS

  @property
  def compute_dtype(self) -> Any:
    """What the matrix unit multiplies."""
    return jnp.bfloat16 if self.dtype == jnp.bfloat16 else jnp.float32

  @property
  def chunk(self) -> int:
    """Channels that are worked on together."""
    return 2 * LANES if self.width % (2 * LANES) == 0 else LANES

  def tile(self, part: Array, step: Array) -> Array:
    """Returns the index of a tile."""
    return part * self.grid[1] + step

  def tokens_spec(self) -> pl.BlockSpec:
    """Tiles of [T, D]."""
    return pl.BlockSpec((self.tokens, self.width), lambda p, i, _: (self.tile(p, i), 0))

  def reads_spec(self) -> pl.BlockSpec:
    """Tiles of [S, T, D]."""
    shape = self.num_reads, self.tokens, self.width
    return pl.BlockSpec(shape, lambda p, i, _: (0, self.tile(p, i), 0))

  def whole_spec(self, rows: int) -> pl.BlockSpec:
    """All of [rows, D]."""
    return pl.BlockSpec((rows, self.width), lambda p, i, _: (0, 0))

  def lanes_spec(self, rows: int, groups: int) -> pl.BlockSpec:
    """Tiles of numbers [groups of tokens, rows, groups of slots · LANES]."""
    shape = self.tokens // ROWS, rows, groups * LANES
    return pl.BlockSpec(shape, lambda p, i, _: (self.tile(p, i), 0, 0))

  def lanes_shape(self, rows: int, groups: int) -> jax.ShapeDtypeStruct:
    """Of the array that `lanes_spec` has tiles of."""
    return jax.ShapeDtypeStruct((self.row_groups, rows, groups * LANES), jnp.float32)

  def slot_specs(self) -> list[pl.BlockSpec]:
    """Tiles of every slot: of [N_max, T, D] for those of the bank, then of [T, D]."""
    return [*map(self._bank_spec, range(self.num_banked)), *[self.tokens_spec()] * self.num_recent]

  def _bank_spec(self, slot: int) -> pl.BlockSpec:
    # An index that stands still is not fetched again, so slots that hold nothing cost no bytes.
    def index(p, i, counts):
      valid = slot < counts[0]
      return jnp.where(valid, slot, 0), jnp.where(valid, self.tile(p, i), 0), 0

    return pl.BlockSpec((None, self.tokens, self.width), index)

  def valid_lanes(self, counts: Any, group: int) -> Array:
    """Returns which lanes of a group belong to slots that count: bool [1, LANES]."""
    slot = group * SLOTS + lax.div(lax.broadcasted_iota(jnp.int32, (1, LANES), 1), ROWS)
    recent = (slot >= self.num_banked) & (slot < self.num_slots)
    return recent | (slot < jnp.minimum(counts[0], self.num_banked))

  def for_each_chunk(self, run: Callable[[Any, Any], Any], carry: Any = None) -> Any:
    """Folds `carry = run(lanes, carry)` over all chunks of channels."""
    return tpu_rows.for_each_chunk(self.width, self.chunk, run, carry)

  def slots_chunk(self, slots: Any, group: int, rows: Any, lanes: Any) -> Array:
    """Returns a chunk [SLOTS · ROWS, chunk] of a group of slots."""
    tiles = [ref[rows, lanes].astype(self.compute_dtype) for ref in _of_group(slots, group)]
    missing = SLOTS - len(tiles)
    if missing:
      tiles.append(jnp.zeros((missing * ROWS, self.chunk), self.compute_dtype))
    return jnp.concatenate(tiles)

  def clear_what_holds_anything(self, counts: Any, tile: Array, slots: Any, others: Any) -> None:
    """Zeroes rows behind the last token, and a bank of which nothing is valid.

    What they hold may not be finite, and the matrix unit multiplies it with 0.

    Args:
      counts: of the operands.
      tile: index of the tile of tokens.
      slots: references [tokens, D], of every slot.
      others: references [tokens, D] to whatever else has rows.
    """
    if self.num_banked and self.num_recent:

      @pl.when(counts[0] == 0)
      def _():
        for ref in slots[: self.num_banked]:
          ref[...] = jnp.zeros_like(ref)

    rest = self.num_tokens % self.tokens
    if rest:

      @pl.when((tile == self.num_tiles - 1) | (counts[0] < self.num_banked))
      def _():
        # A slot of the bank that holds nothing stands on tile 0, whose rows may be the last.
        end = jnp.where(tile == self.num_tiles - 1, rest, self.tokens)
        for ref in [*slots, *others]:
          tpu_rows.clear_rows_from(ref, end)

  def queries(self, query: Array) -> Array:
    """Returns queries [S, D] as rows for the matrix unit, as many parts as are exact together."""
    rows = jnp.pad(query.astype(jnp.float32), ((0, self.padded_reads - self.num_reads), (0, 0)))
    if self.compute_dtype == jnp.float32:
      return rows
    parts = []
    for _ in range(3):
      part = lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)
      parts.append(part.astype(jnp.bfloat16))
      rows -= part
    return jnp.concatenate(parts)

  def sum_parts(self, product: Array) -> Array:
    """Adds what the parts of `queries` gave."""
    size = self.padded_reads
    return sum(product[start : start + size] for start in range(0, len(product), size))

  def diagonal(self) -> Array:
    """Returns where row (s, t) and lane (n, t') have one token: bool [S · ROWS, LANES]."""
    shape = self.num_reads * ROWS, LANES
    row, lane = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    return lax.rem(row, ROWS) == lax.rem(lane, ROWS)

  def block_diagonal(self, weights: Array, diagonal: Array) -> Array:
    """Spreads weights [S, LANES] over rows (s, t): float32 [S · ROWS, LANES]."""
    rows = [jnp.broadcast_to(weights[s : s + 1], (ROWS, LANES)) for s in range(self.num_reads)]
    return jnp.where(diagonal, jnp.concatenate(rows), 0)


def _of_group(slots: Any, group: int) -> Any:
  return slots[group * SLOTS : (group + 1) * SLOTS]


def over_slots(op: Callable, groups: list[Array]) -> Array:
  """Reduces numbers [S, LANES] of all groups over slots; every slot gets the result."""
  total = functools.reduce(op, groups)
  for shift in (ROWS << k for k in range(SLOTS.bit_length() - 1)):
    total = op(total, pltpu.roll(total, shift, 1))
  return total


def matmul(a: Array, b: Array) -> Array:
  """Returns a b in float32."""
  return _product(a, b, _NN)


def matmul_transposed(a: Array, b: Array) -> Array:
  """Returns a bᵀ in float32."""
  return _product(a, b, _NT)


def _product(a: Array, b: Array, dims: Any) -> Array:
  precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
  return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)
