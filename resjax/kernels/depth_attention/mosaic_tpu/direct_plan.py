"""What both kernels of the direct read for TPUs share: their tiles, and steps within a tile.

A tile of tokens is worked on in groups of `ROWS` tokens and chunks of `LANES` channels. A chunk is
[ROWS / 8, 8, LANES] float32, which are whole registers. Slots are taken in groups, and a group of
slots of the bank runs only if one of them holds a source: slots that hold nothing cost nothing.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from resjax.base import Array
from resjax.kernels.depth_attention.mosaic_tpu import tiles
from resjax.kernels.depth_attention.mosaic_tpu.sources_plan import SourcesPlan
from resjax.kernels.depth_attention.mosaic_tpu.tiles import PassSizes, TpuTiles
from resjax.kernels.depth_attention.operands import Operands, Read
from resjax.kernels.mosaic_tpu import ROWS, SUBLANES, Span, call, for_each_chunk, for_each_row_group
from resjax.kernels.operation import LANES, Ref

_UNROLLED_CHUNKS = 24  # chunks of a row that are written out one after another
_SHORT_CODE = 256  # chunks of all sources up to which two groups of rows run at a time


@dataclasses.dataclass(frozen=True)
class DirectPlan(SourcesPlan):
  """The tiles of a direct read.

  Attributes:
    out_norm_eps: number added to the mean square of the output in its norm.
  """

  out_norm_eps: float

  @classmethod
  def of(
    cls, name: str, read: Read, operands: Operands, tile_sizes: TpuTiles | None
  ) -> "DirectPlan":
    """Returns the plan of the pass `name`, with given or chosen tile sizes."""
    sizes = PassSizes.of(name, read, operands)
    chosen = tile_sizes or tiles.choose(sizes)
    assert chosen is not None  # obstacles.py refuses reads that do not fit
    return cls(sizes, chosen, read.eps, read.out_norm_eps)

  @property
  def stats_tokens(self) -> int:
    """Tokens of a tile of statistics, in which tokens lie on lanes."""
    return max(LANES, self.tiles.tokens)

  @property
  def tiles_per_stats(self) -> int:
    """Tiles of tokens per tile of statistics."""
    return self.stats_tokens // self.tiles.tokens

  @property
  def padded_tokens(self) -> int:
    """T, rounded up to whole tiles of statistics."""
    return -(-self.sizes.num_tokens // self.stats_tokens) * self.stats_tokens

  @property
  def row_groups_at_once(self) -> int:
    """Groups of rows in one step of the loop over a tile.

    With two, one group computes while the other waits for sums over lanes. This doubles the code
    of the loop, so it is done only where that is short.
    """
    chunks = self.sizes.num_slots * self.sizes.width // LANES
    return 2 if self.tiles.tokens >= 2 * ROWS and chunks <= _SHORT_CODE else 1

  def stats_spec(self, rows: int) -> pl.BlockSpec:
    """Returns tiles of statistics [rows, padded T]."""
    shape = rows, self.stats_tokens
    return pl.BlockSpec(shape, lambda p, i, _: (0, self.tile(p, i) // self.tiles_per_stats))

  def padded_stats(self, stats: Array) -> call.Tiled:
    """Returns tiles of statistics [rows, T], which are padded with zeros."""
    missing = self.padded_tokens - self.sizes.num_tokens
    return call.Tiled(jnp.pad(stats, ((0, 0), (0, missing))), self.stats_spec(len(stats)))

  def groups(self, counts: Ref) -> Iterator[tuple[range, Array | None]]:
    """Yields the slots of every group, and the condition under which one of them holds a source."""
    size, banked, slots = self.tiles.slots, self.sizes.num_banked, self.sizes.num_slots
    for start in range(banked, slots, size):
      yield range(start, min(start + size, slots)), None
    for start in range(0, banked, size):
      yield range(start, min(start + size, banked)), start < counts[0]

  def for_each_group(self, counts: Ref, run: Callable[[range], None]) -> None:
    """Calls run(slots) for every group of slots that may hold a source."""
    for slots, condition in self.groups(counts):
      if condition is None:
        run(slots)
      else:
        pl.when(condition)(lambda slots=slots: run(slots))  # type: ignore[misc]

  def for_each_chunk(self, run: Callable[[Span, Any], Any], carry: Any = None) -> Any:
    """Folds `carry = run(lanes, carry)` over all chunks of channels."""
    return for_each_chunk(self.sizes.width, LANES, run, carry, _UNROLLED_CHUNKS)

  def for_each_row_group(self, run: Callable[[Span], None]) -> None:
    """Calls run(rows) for each group of rows of a tile."""
    for_each_row_group(self.tiles.tokens, lambda _, rows: run(rows), unroll=self.row_groups_at_once)

  def valid_lanes(self, counts: Ref, rows: int) -> Array:
    """Returns which lanes belong to slots that count: bool [rows, LANES]."""
    lane, sizes = lax.broadcasted_iota(jnp.int32, (rows, LANES), 1), self.sizes
    recent = (lane >= sizes.num_banked) & (lane < sizes.num_slots)
    if sizes.num_recent:
      recent &= (lane < sizes.num_slots - 1) | (counts[1] > 0)
    return recent | (lane < jnp.minimum(counts[0], sizes.num_banked))


def load(ref: Ref, rows: Span, lanes: Span) -> Array:
  """Returns a chunk [ROWS / 8, 8, LANES] in float32."""
  return ref[rows, lanes].astype(jnp.float32).reshape(-1, SUBLANES, LANES)


def store(ref: Ref, rows: Span, lanes: Span, chunk: Array) -> None:
  """Writes a chunk in the dtype of the reference."""
  ref[rows, lanes] = chunk.reshape(-1, LANES).astype(ref.dtype)


def zero_chunk() -> Array:
  """Returns a chunk [ROWS / 8, 8, LANES] of zeros."""
  return jnp.zeros((ROWS // SUBLANES, SUBLANES, LANES), jnp.float32)


def column(lanes: Ref | Array, slot: int) -> Array:
  """Returns a chunk whose rows are filled with lane `slot` of the rows of [ROWS, LANES]."""
  one = jnp.broadcast_to(lanes[:, slot : slot + 1], (ROWS, LANES))
  return one.reshape(-1, SUBLANES, LANES)


def put_columns(ref: Ref, rows: Span, slots: range, chunks: Sequence[Array]) -> None:
  """Writes the sums of chunks over their channels to the lanes of their slots."""
  held = load(ref, rows, slice(None))
  lane = lax.broadcasted_iota(jnp.int32, held.shape, 2)
  for slot, chunk in zip(slots, chunks, strict=True):
    held = jnp.where(lane == slot, jnp.sum(chunk, axis=-1, keepdims=True), held)
  store(ref, rows, slice(None), held)


def spread_rows(row: Array | None) -> Array | None:
  """Returns [D] as float32 [8, D], the same in every sublane of a register; None for None."""
  if row is None:
    return None
  return jnp.broadcast_to(row.astype(jnp.float32), (SUBLANES, *row.shape))
