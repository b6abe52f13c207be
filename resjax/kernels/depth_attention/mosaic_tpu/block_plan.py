"""What both kernels of phase 1 for TPUs share: their grid, and how they see a tile.

A tile of tokens is worked on in groups of `ROWS` tokens. Slots are taken in groups of `SLOTS`,
whose rows together are a matrix [SLOTS · ROWS, D]: row (n, t) is token t of slot n. Numbers per
read, source and token have the reads on rows and (n, t) on the lanes: [S, LANES].
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

from resjax.hardware.chips import TPU_CHIPS
from resjax.kernels.depth_attention.mosaic_tpu import walks
from resjax.kernels.depth_attention.mosaic_tpu.direct_plan import Plan
from resjax.kernels.depth_attention.mosaic_tpu.tiles import (
  LANES,
  ROWS,
  SUBLANES,
  Pass,
  TpuTiles,
)
from resjax.kernels.depth_attention.operands import Operands, Read
from resjax.typing import Array

SLOTS = LANES // ROWS
_TOKENS = (128, 64, 32, ROWS)
_MIN_TILES = 8
_SPARE = 12 * 2**20  # for registers that do not fit
_NN, _NT = (((1,), (0,)), ((), ())), (((1,), (1,)), ((), ()))


@dataclasses.dataclass(frozen=True)
class BlockPlan(Plan):
  """How phase 1 is cut into tiles.

  Attributes:
    num_reads: S.
  """

  num_reads: int

  @classmethod
  def of(cls, name: str, read: Read, operands: Operands, num_tokens: int) -> "BlockPlan | None":
    """Returns the plan of pass `name` with the largest tile that fits; None if none does."""
    work = Pass.of(name, read, operands, num_tokens)
    return cls.largest(work, len(operands.query), read.eps)

  @classmethod
  def largest(cls, work: Pass, num_reads: int, eps: float) -> "BlockPlan | None":
    """Returns the plan of a pass with the largest tile that fits; None if none does."""
    # A first tile is read and a last one written while nothing else happens.
    sizes = [n for n in _TOKENS if n == ROWS or n * _MIN_TILES <= work.num_tokens]
    plans = (cls(work, TpuTiles(n), eps, num_reads) for n in sizes)
    room = TPU_CHIPS[work.chip].vmem - _SPARE
    return next((plan for plan in plans if plan.vmem_bytes <= room), None)

  @property
  def vmem_bytes(self) -> int:
    """On-chip memory: tiles in use and on their way, numbers per token, queries."""
    work = self.work
    arrays = 2 * (work.num_slots + self.num_reads)
    if work.name == "backward":
      arrays += (3 if work.threaded else 2) * work.num_banked
      arrays += (4 if work.threaded else 2) * work.num_recent
    tile = self.tiles.tokens * work.width * self.dtype.itemsize
    numbers = (2 * self.num_groups + 1) * self.padded_reads + self.num_groups * SUBLANES
    queries = 2 * 6 * self.padded_reads * work.width
    return arrays * tile + 2 * numbers * LANES * 4 * self.tiles.tokens // ROWS + queries

  @property
  def dtype(self) -> Any:
    """Of the sources."""
    return jnp.dtype(self.work.dtype)

  @property
  def padded_reads(self) -> int:
    """S up to whole registers."""
    return -(-self.num_reads // SUBLANES) * SUBLANES

  @property
  def num_groups(self) -> int:
    """Number of groups of slots."""
    return -(-self.work.num_slots // SLOTS)

  @property
  def row_groups(self) -> int:
    """Number of groups of tokens, those of all tiles."""
    return self.num_tiles * self.tiles.tokens // ROWS

  @property
  def compute_dtype(self) -> Any:
    """What the matrix unit multiplies."""
    return jnp.bfloat16 if self.dtype == jnp.bfloat16 else jnp.float32

  @property
  def chunk(self) -> int:
    """Channels that are worked on together."""
    return 2 * LANES if self.work.width % (2 * LANES) == 0 else LANES

  def reads_spec(self) -> pl.BlockSpec:
    """Tiles of [S, T, D]."""
    shape = self.num_reads, self.tiles.tokens, self.work.width
    return pl.BlockSpec(shape, lambda p, i, _: (0, self.tile(p, i), 0))

  def whole_spec(self, rows: int) -> pl.BlockSpec:
    """All of [rows, D]."""
    return pl.BlockSpec((rows, self.work.width), lambda p, i, _: (0, 0))

  def lanes_spec(self, rows: int, groups: int) -> pl.BlockSpec:
    """Tiles of numbers [groups of tokens, rows, groups of slots · LANES]."""
    shape = self.tiles.tokens // ROWS, rows, groups * LANES
    return pl.BlockSpec(shape, lambda p, i, _: (self.tile(p, i), 0, 0))

  def lanes_shape(self, rows: int, groups: int) -> jax.ShapeDtypeStruct:
    """Of the array that `lanes_spec` has tiles of."""
    return jax.ShapeDtypeStruct((self.row_groups, rows, groups * LANES), jnp.float32)

  def valid_slots(self, counts: Any, group: int) -> Array:
    """Returns which lanes of a group belong to slots that count: bool [1, LANES]."""
    slot = group * SLOTS + lax.div(lax.broadcasted_iota(jnp.int32, (1, LANES), 1), ROWS)
    recent = (slot >= self.work.num_banked) & (slot < self.work.num_slots)
    return recent | (slot < jnp.minimum(counts[0], self.work.num_banked))

  def for_each_row_group(self, run: Callable[[Array, Any], None]) -> None:
    """Runs with the index of each group of tokens, and its rows."""
    walks.for_each_row_group(self.tiles.tokens, run)

  def for_each_chunk(self, run: Callable[[Any, Any], Any], carry: Any = None) -> Any:
    """Folds `carry = run(lanes, carry)` over all chunks of channels."""
    return walks.for_each_chunk(self.work.width, self.chunk, run, carry)

  def slots_chunk(self, slots: Any, group: int, rows: Any, lanes: Any) -> Array:
    """Returns a chunk [SLOTS · ROWS, chunk] of a group of slots."""
    tiles = [ref[rows, lanes].astype(self.compute_dtype) for ref in of_group(slots, group)]
    missing = SLOTS - len(tiles)
    if missing:
      tiles.append(jnp.zeros((missing * ROWS, self.chunk), self.compute_dtype))
    return jnp.concatenate(tiles)

  def clear_empty_bank(self, counts: Any, slots: Any) -> None:
    """Zeroes a bank of which nothing is valid: the matrix unit multiplies what it holds with 0."""
    if self.work.num_banked and self.work.num_recent:

      @pl.when(counts[0] == 0)
      def _():
        for ref in slots[: self.work.num_banked]:
          ref[...] = jnp.zeros_like(ref)

  def queries(self, query: Array) -> Array:
    """Returns queries [S, D] as rows for the matrix unit, as many parts as are exact together."""
    rows = jnp.pad(query.astype(jnp.float32), ((0, self.padded_reads - self.num_reads), (0, 0)))
    if self.compute_dtype == jnp.float32:
      return rows
    parts = []
    for _ in range(3):
      # A cast to bfloat16 and back may be compiled to nothing.
      part = lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)
      parts.append(part.astype(jnp.bfloat16))
      rows -= part
    return jnp.concatenate(parts)

  def sum_parts(self, product: Array) -> Array:
    """Adds what each part of some rows gave: [parts · S, ...] becomes [S, ...]."""
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


def of_group(slots: Any, group: int) -> Any:
  """Returns the slots of a group."""
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
