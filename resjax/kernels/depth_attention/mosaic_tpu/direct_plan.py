"""What the forward and the backward kernel for TPUs share: their grid, and how they walk a tile.

A tile of tokens is worked on in groups of `ROWS` tokens and chunks of `LANES` channels. A chunk is
held as [ROWS / 8, 8, LANES] float32, whole registers. Slots are taken in groups: those of the bank
run under a condition, so that slots that hold nothing cost nothing.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS, SUBLANES, Pass, TpuTiles
from resjax.typing import Array

_UNROLLED_CHUNKS = 24  # of a row, written out one after the other
_PAIRED_CHUNKS = 256  # of all sources


@dataclasses.dataclass(frozen=True)
class Plan:
  """How a pass is cut into tiles.

  Attributes:
    work: the pass.
    tiles: tile sizes.
    eps: added to mean squares.
  """

  work: Pass
  tiles: TpuTiles
  eps: float

  @property
  def stats_tokens(self) -> int:
    """Tokens of a tile of statistics, which lie on lanes."""
    return max(LANES, self.tiles.tokens)

  @property
  def num_tiles(self) -> int:
    """Number of tiles of tokens; the last one may be part empty."""
    return -(-self.work.num_tokens // self.tiles.tokens)

  @property
  def tiles_per_stats(self) -> int:
    """Tiles of tokens per tile of statistics."""
    return self.stats_tokens // self.tiles.tokens

  @property
  def padded_tokens(self) -> int:
    """T up to whole tiles of statistics."""
    return -(-self.work.num_tokens // self.stats_tokens) * self.stats_tokens

  @property
  def grid(self) -> tuple[int, int]:
    """Parts that may run on cores of their own, tiles of each; no two share statistics."""
    parts = 1 if self.num_tiles % (2 * self.tiles_per_stats) else 2
    return parts, self.num_tiles // parts

  @property
  def row_groups_at_once(self) -> int:
    """Of two, one computes while the other waits for what crosses lanes; if the code is short."""
    chunks = self.work.num_slots * self.work.width // LANES
    return 2 if self.tiles.tokens >= 2 * ROWS and chunks <= _PAIRED_CHUNKS else 1

  def tile(self, part: Array, step: Array) -> Array:
    """Returns the index of a tile."""
    return part * self.grid[1] + step

  def tokens_spec(self) -> pl.BlockSpec:
    """Tiles of [T, D]."""
    return pl.BlockSpec((self.tiles.tokens, self.work.width), lambda p, i, _: (self.tile(p, i), 0))

  def row_spec(self) -> pl.BlockSpec:
    """A row [8, D] that stays."""
    return pl.BlockSpec((SUBLANES, self.work.width), lambda p, i, _: (0, 0))

  def stats_spec(self, rows: int) -> pl.BlockSpec:
    """Tiles of [rows, padded T]."""
    shape = rows, self.stats_tokens
    return pl.BlockSpec(shape, lambda p, i, _: (0, self.tile(p, i) // self.tiles_per_stats))

  def slot_specs(self) -> tuple[pl.BlockSpec, ...]:
    """Tiles of every slot: of [N_max, T, D] for those of the bank, then of [T, D]."""
    banked = tuple(map(self._bank_spec, range(self.work.num_banked)))
    return banked + (self.tokens_spec(),) * self.work.num_recent

  def _bank_spec(self, slot: int) -> pl.BlockSpec:
    # An index that stands still is not fetched again. Where any slot is valid slot 0 is: then the
    # tile on which the others stand holds finite numbers.
    def index(p, i, counts):
      valid = slot < counts[0]
      return jnp.where(valid, slot, 0), jnp.where(valid, self.tile(p, i), 0), 0

    return pl.BlockSpec((None, self.tiles.tokens, self.work.width), index)

  def groups(self, counts: Any) -> Iterator[tuple[range, Array | None]]:
    """Yields the slots of every group, and the condition under which any of them is valid."""
    size, banked, slots = self.tiles.slots, self.work.num_banked, self.work.num_slots
    for start in range(banked, slots, size):
      yield range(start, min(start + size, slots)), None
    for start in range(0, banked, size):
      yield range(start, min(start + size, banked)), start < counts[0]

  def for_each_group(self, counts: Any, run: Callable[[range], None]) -> None:
    """Runs over all groups of slots that may hold something."""
    for slots, condition in self.groups(counts):
      if condition is None:
        run(slots)
      else:
        pl.when(condition)(lambda slots=slots: run(slots))

  def for_each_chunk(self, run: Callable[[Any, Any], Any], carry: Any = None) -> Any:
    """Folds `carry = run(lanes, carry)` over all chunks of channels."""
    count = self.work.width // LANES
    unrolled = max(n for n in range(1, _UNROLLED_CHUNKS + 1) if count % n == 0)

    def span(index, carry):
      for offset in range(unrolled):
        start = index * unrolled * LANES + offset * LANES
        start = start if isinstance(index, int) else pl.multiple_of(start, LANES)
        carry = run(pl.ds(start, LANES), carry)
      return carry

    return span(0, carry) if unrolled == count else lax.fori_loop(0, count // unrolled, span, carry)

  def for_each_row_group(self, run: Callable[[Any], None]) -> None:
    """Runs over the groups of rows of a tile."""

    def body(index, _):
      run(pl.ds(pl.multiple_of(index * ROWS, ROWS), ROWS))

    lax.fori_loop(0, self.tiles.tokens // ROWS, body, None, unroll=self.row_groups_at_once)

  def clear_rows_past_end(self, tile: Array, refs: list[Any]) -> None:
    """Zeroes the rows of the last tile that belong to no token; they hold anything."""
    rest = self.work.num_tokens % self.tiles.tokens
    if not rest:
      return

    @pl.when(tile == self.num_tiles - 1)
    def _():
      rows = lax.broadcasted_iota(jnp.int32, (self.tiles.tokens, LANES), 0)
      for ref in refs:
        for start in range(0, self.work.width, LANES):
          lanes = pl.ds(start, LANES)
          ref[:, lanes] = jnp.where(rows < rest, ref[:, lanes].astype(jnp.float32), 0).astype(
            ref.dtype
          )

  def valid_lanes(self, counts: Any, rows: int) -> Array:
    """Returns which lanes belong to slots that count: bool [rows, LANES]."""
    lane, work = lax.broadcasted_iota(jnp.int32, (rows, LANES), 1), self.work
    recent = (lane >= work.num_banked) & (lane < work.num_slots)
    if work.num_recent:
      recent &= (lane < work.num_slots - 1) | (counts[1] > 0)
    return recent | (lane < jnp.minimum(counts[0], work.num_banked))


def load(ref: Any, rows: Any, lanes: Any) -> Array:
  """Returns a chunk [ROWS / 8, 8, LANES] in float32."""
  return ref[rows, lanes].astype(jnp.float32).reshape(-1, SUBLANES, LANES)


def store(ref: Any, rows: Any, lanes: Any, chunk: Array) -> None:
  """Writes a chunk in the dtype of the reference."""
  ref[rows, lanes] = chunk.reshape(-1, LANES).astype(ref.dtype)


def zero_chunk() -> Array:
  """Returns a chunk [ROWS / 8, 8, LANES] of zeros."""
  return jnp.zeros((ROWS // SUBLANES, SUBLANES, LANES), jnp.float32)


def column(lanes: Any, slot: int) -> Array:
  """Gives a whole chunk the number that a row of [ROWS, LANES] holds on the lane of a slot."""
  one = jnp.broadcast_to(lanes[:, slot : slot + 1], (ROWS, LANES))
  return one.reshape(-1, SUBLANES, LANES)


def put_columns(ref: Any, rows: Any, slots: range, chunks: list[Array]) -> None:
  """Writes the sums over channels of chunks to the lanes of their slots."""
  held = load(ref, rows, slice(None))
  lane = lax.broadcasted_iota(jnp.int32, held.shape, 2)
  for slot, chunk in zip(slots, chunks, strict=True):
    held = jnp.where(lane == slot, jnp.sum(chunk, axis=-1, keepdims=True), held)
  store(ref, rows, slice(None), held)


def spread_rows(row: Array) -> Array:
  """Returns [D] as float32 [8, D]: every sublane of a register holds it."""
  return jnp.broadcast_to(row.astype(jnp.float32), (SUBLANES, *row.shape))


def pad_tokens(stats: Array, plan: Plan) -> Array:
  """Returns statistics [rows, T] as [rows, padded T]."""
  return jnp.pad(stats, ((0, 0), (0, plan.padded_tokens - plan.work.num_tokens)))


def num_bytes(*arrays: Any) -> int:
  """Returns the size of arrays in memory."""
  return sum(math.prod(a.shape) * jnp.dtype(a.dtype).itemsize for a in jax.tree.leaves(arrays))
