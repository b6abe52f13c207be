"""What both kernels of phase 1 for TPUs share: their tiles, and steps within a tile.

A tile of tokens is worked on in groups of `ROWS` tokens. Slots are taken in groups of `SLOTS`. The
rows of a group of slots, for one group of tokens, are a matrix [SLOTS · ROWS, D] for the matrix
unit: row (n, t) is token t of slot n. Numbers per read, source and token are [S, LANES]: a read per
row, and (n, t) on the lanes. In memory these are [groups of tokens, S, groups of slots · LANES].
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array
from resjax.base.hardware import TPU_CHIPS
from resjax.kernels.depth_attention.mosaic_tpu.sources_plan import SourcesPlan
from resjax.kernels.depth_attention.mosaic_tpu.tiles import PassSizes, TpuTiles
from resjax.kernels.depth_attention.operands import Operands, Read
from resjax.kernels.mosaic_tpu import ROWS, SUBLANES, Span, call, for_each_chunk, for_each_row_group
from resjax.kernels.operation import LANES, Ref

SLOTS = LANES // ROWS
_TOKENS = (128, 64, 32, ROWS)
_MIN_TILES = 8
_SPARE = 12 * 2**20  # bytes left for registers that are spilled
_NN, _NT = (((1,), (0,)), ((), ())), (((1,), (1,)), ((), ()))


@dataclasses.dataclass(frozen=True)
class BlockPlan(SourcesPlan):
  """The tiles of phase 1.

  Attributes:
    num_reads: S.
  """

  num_reads: int

  @classmethod
  def of(cls, name: str, read: Read, operands: Operands) -> "BlockPlan":
    """Returns the plan of the pass `name` with the largest tile that fits."""
    plan = cls.largest(PassSizes.of(name, read, operands), len(operands.query), read.eps)
    assert plan is not None  # obstacles.py refuses reads that do not fit
    return plan

  @classmethod
  def largest(cls, sizes: PassSizes, num_reads: int, eps: float) -> "BlockPlan | None":
    """Returns the plan of a pass with the largest tile that fits; None if none does."""
    # The first tile is read and the last one written while nothing else runs.
    tokens = [n for n in _TOKENS if n == ROWS or n * _MIN_TILES <= sizes.num_tokens]
    plans = (cls(sizes, TpuTiles(n), eps, num_reads) for n in tokens)
    room = TPU_CHIPS[sizes.chip].vmem - _SPARE
    return next((plan for plan in plans if plan.vmem_bytes <= room), None)

  @property
  def vmem_bytes(self) -> int:
    """Bytes of on-chip memory: two tiles of all that a pipeline moves, and the queries."""
    sizes = self.sizes
    arrays = 2 * (sizes.num_slots + self.num_reads)
    if sizes.name == "backward":
      arrays += (3 if sizes.threaded else 2) * sizes.num_banked
      arrays += (4 if sizes.threaded else 2) * sizes.num_recent
    tile = self.tiles.tokens * sizes.width * self.dtype.itemsize
    numbers = (2 * self.num_groups + 1) * self.padded_reads + self.num_groups * SUBLANES
    queries = 2 * 6 * self.padded_reads * sizes.width
    return arrays * tile + 2 * numbers * LANES * 4 * self.tiles.tokens // ROWS + queries

  @property
  def padded_reads(self) -> int:
    """S, rounded up to whole registers."""
    return -(-self.num_reads // SUBLANES) * SUBLANES

  @property
  def num_groups(self) -> int:
    """Number of groups of slots."""
    return -(-self.sizes.num_slots // SLOTS)

  @property
  def row_groups(self) -> int:
    """Number of groups of tokens in all tiles."""
    return self.num_tiles * self.tiles.tokens // ROWS

  @property
  def compute_dtype(self) -> Any:
    """The dtype of the factors that the matrix unit multiplies."""
    return jnp.bfloat16 if self.dtype == jnp.bfloat16 else jnp.float32

  @property
  def chunk(self) -> int:
    """Number of channels that are worked on together."""
    return 2 * LANES if self.sizes.width % (2 * LANES) == 0 else LANES

  def reads_spec(self) -> pl.BlockSpec:
    """Returns tiles of [S, T, D]."""
    shape = self.num_reads, self.tiles.tokens, self.sizes.width
    return pl.BlockSpec(shape, lambda p, i, _: (0, self.tile(p, i), 0))

  def numbers(self, rows: int, groups: int, x: Array | None = None) -> call.Tiled:
    """Returns tiles of numbers [groups of tokens, rows, groups of slots · LANES].

    Args:
      rows: number of rows, S or 1.
      groups: number of groups of slots.
      x: the numbers; None for those that the kernel writes.
    """
    shape = jax.ShapeDtypeStruct((self.row_groups, rows, groups * LANES), jnp.float32)
    tile = self.tiles.tokens // ROWS, rows, groups * LANES
    spec = pl.BlockSpec(tile, lambda p, i, _: (self.tile(p, i), 0, 0))
    return call.Tiled(shape if x is None else x, spec)

  def from_lanes(self, x: Array) -> Array:
    """Returns numbers [groups of tokens, rows, (n, t)] as [rows, n, T]."""
    x = jnp.transpose(x.reshape(*x.shape[:2], -1, ROWS), (1, 2, 0, 3))
    return x.reshape(*x.shape[:2], -1)[..., : self.sizes.num_tokens]

  def to_lanes(self, x: Array, padded_rows: int) -> Array:
    """Returns numbers [rows, n, T] as [groups of tokens, rows, (n, t)], padded with zeros."""
    rows, slots, tokens = x.shape
    more_tokens = self.row_groups * ROWS - tokens
    x = jnp.pad(x, ((0, padded_rows - rows), (0, -slots % SLOTS), (0, more_tokens)))
    x = jnp.transpose(x.reshape(*x.shape[:2], -1, ROWS), (2, 0, 1, 3))
    return x.reshape(*x.shape[:2], -1)

  def valid_slots(self, counts: Ref, group: int) -> Array:
    """Returns which lanes of a group belong to slots that count: bool [1, LANES]."""
    slot = group * SLOTS + lax.div(lax.broadcasted_iota(jnp.int32, (1, LANES), 1), ROWS)
    recent = (slot >= self.sizes.num_banked) & (slot < self.sizes.num_slots)
    return recent | (slot < jnp.minimum(counts[0], self.sizes.num_banked))

  def for_each_row_group(self, run: Callable[[Array, Span], None]) -> None:
    """Calls run(index, rows) for each group of tokens of a tile."""
    for_each_row_group(self.tiles.tokens, run)

  def for_each_chunk(self, run: Callable[[Span, Any], Any], carry: Any = None) -> Any:
    """Folds `carry = run(lanes, carry)` over all chunks of channels."""
    return for_each_chunk(self.sizes.width, self.chunk, run, carry)

  def slots_chunk(self, slots: tuple[Ref, ...], group: int, rows: Span, lanes: Span) -> Array:
    """Returns a chunk [SLOTS · ROWS, chunk] of a group of slots; missing slots are zero."""
    tiles = [ref[rows, lanes].astype(self.compute_dtype) for ref in of_group(slots, group)]
    missing = SLOTS - len(tiles)
    if missing:
      tiles.append(jnp.zeros((missing * ROWS, self.chunk), self.compute_dtype))
    return jnp.concatenate(tiles)

  def clear_empty_bank(self, counts: Ref, slots: tuple[Ref, ...]) -> None:
    """Zeroes the tiles of a bank without a source.

    The matrix unit multiplies slots that do not count by 0, which gives 0 only for finite numbers.
    """
    if self.sizes.num_banked and self.sizes.num_recent:

      @pl.when(counts[0] == 0)
      def _() -> None:
        for ref in slots[: self.sizes.num_banked]:
          ref[...] = jnp.zeros_like(ref)

  def queries(self, query: Array) -> Array:
    """Returns queries [S, D] as rows for the matrix unit: in bfloat16 three parts, an exact sum."""
    rows = jnp.pad(query.astype(jnp.float32), ((0, self.padded_reads - self.num_reads), (0, 0)))
    if self.compute_dtype == jnp.float32:
      return rows
    parts = []
    for _ in range(3):
      # The compiler may remove a cast to bfloat16 and back, but not this.
      part = lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)
      parts.append(part.astype(jnp.bfloat16))
      rows -= part
    return jnp.concatenate(parts)

  def sum_parts(self, product: Array) -> Array:
    """Returns the sum of the parts of a product: [parts · S, ...] becomes [S, ...]."""
    size = self.padded_reads
    parts = (product[start : start + size] for start in range(0, len(product), size))
    return functools.reduce(jnp.add, parts)

  def diagonal(self) -> Array:
    """Returns where row (s, t) and lane (n, t') have t = t': bool [S · ROWS, LANES]."""
    shape = self.num_reads * ROWS, LANES
    row, lane = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    return lax.rem(row, ROWS) == lax.rem(lane, ROWS)

  def block_diagonal(self, weights: Array, diagonal: Array) -> Array:
    """Returns weights [S, LANES] as a matrix [S · ROWS, LANES], zero between different tokens."""
    rows = [jnp.broadcast_to(weights[s : s + 1], (ROWS, LANES)) for s in range(self.num_reads)]
    return jnp.where(diagonal, jnp.concatenate(rows), 0)


def of_group(slots: tuple[Ref, ...], group: int) -> tuple[Ref, ...]:
  """Returns the slots of a group."""
  return slots[group * SLOTS : (group + 1) * SLOTS]


def over_slots(op: Callable, groups: list[Array]) -> Array:
  """Reduces numbers [S, LANES] of all groups over slots; every slot holds the result."""
  total = functools.reduce(op, groups)
  for shift in (ROWS << k for k in range(SLOTS.bit_length() - 1)):
    total = op(total, pltpu.roll(total, shift, 1))
  return total


def matmul(a: Array, b: Array) -> Array:
  """Returns the matrix product a b in float32."""
  return _product(a, b, _NN)


def matmul_transposed(a: Array, b: Array) -> Array:
  """Returns the matrix product a bᵀ in float32."""
  return _product(a, b, _NT)


def _product(a: Array, b: Array, dims: Any) -> Array:
  precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
  return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)
