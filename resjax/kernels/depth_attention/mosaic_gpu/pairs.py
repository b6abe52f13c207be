"""Tables of one number for every pair of a read and a source of a token.

A table is [S', 32] in registers and in shared memory, where S' is S rounded up to a multiple of the
4 warps of a program. A row, one read, is in the registers of one warp, and a column, one source, in
the registers of one lane. Entries past the last read and past the last source may be anything.
"""

import functools
import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.base import Array
from resjax.kernels.depth_attention.mosaic_gpu.source_walk import SourceWalk
from resjax.kernels.depth_attention.operands import Operands
from resjax.kernels.mosaic_gpu import WARPS, row_ops
from resjax.kernels.operation import Ref

MAX_SOURCES = 32  # lanes of a warp
_TABLE = plgpu.Layout.TILED(
  plgpu.Tiling(((WARPS, MAX_SOURCES), (1,))), warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1
)
_READS = plgpu.Layout.TILED(
  plgpu.Tiling(((WARPS,), (1,))),
  warp_dims=(-2,),
  lane_dims=(plgpu.Replicated(MAX_SOURCES),),
  vector_dim=-1,
)
_SOURCES = plgpu.Layout.TILED(
  plgpu.Tiling(((MAX_SOURCES,), (1,))),
  warp_dims=(plgpu.Replicated(WARPS),),
  lane_dims=(-2,),
  vector_dim=-1,
)


def num_rows(num_reads: int) -> int:
  """Returns S', the number of rows of a table."""
  return math.ceil(num_reads / WARPS) * WARPS


def load(ref: Ref) -> Array:
  """Reads a table [S', 32]."""
  return plgpu.layout_cast(ref[...], _TABLE)


def load_reads(ref: Ref) -> Array:
  """Reads one number per read, [S']."""
  return plgpu.layout_cast(ref[...], _READS)


def load_sources(ref: Ref) -> Array:
  """Reads one number per source, [32]."""
  return plgpu.layout_cast(ref[...], _SOURCES)


def spread_reads(column: Array) -> Array:
  """Returns the table whose columns are all equal to a column [S']."""
  shape = *column.shape, MAX_SOURCES
  return plgpu.layout_cast(lax.broadcast_in_dim(column, shape, (0,)), _TABLE)


def spread_sources(row: Array, rows: int) -> Array:
  """Returns the table whose rows are all equal to a row [32]."""
  return plgpu.layout_cast(lax.broadcast_in_dim(row, (rows, MAX_SOURCES), (1,)), _TABLE)


def valid_sources(operands: Operands, rows: int) -> Array:
  """Returns a table of booleans: whether the source of each column counts."""
  slot = plgpu.broadcasted_iota(jnp.int32, (rows, MAX_SOURCES), 1, layout=_TABLE)
  num_valid, last = operands.counts[0], operands.counts[1]
  num_banked, end = operands.num_slots - len(operands.recent), operands.num_slots
  counts = slot < (end - 1 + last if operands.recent else end)
  return counts & ((slot >= num_banked) | (slot < num_valid)) if num_banked else counts


def dot_products(
  walk: SourceWalk,
  sums: row_ops.ChannelSums,
  slots: range,
  rows: Sequence[Callable | None],
  put: Callable[[int, int, Array], None],
) -> None:
  """Calls put(index, slot, ⟨row, v⟩) for every row and every source of a group.

  The product with a source that does not count is 0.

  Args:
    walk: over the sources, which have arrived.
    sums: with room for at least as many rows as there are slots.
    slots: the slots of the group.
    rows: for every row a function, index of a part of the channels -> that part of the row; None
      stands for the source itself.
    put: function that all threads call with the same arguments.
  """
  most = sums.parts.shape[0] // len(slots)
  for start in range(0, len(rows), most):
    some = rows[start : start + most]
    totals = _own_sums(walk, slots, some)
    places = [(k, i) for k in range(len(some)) for i in range(len(slots))]
    for place, (k, i) in enumerate(places):
      sums.put(place, (totals[i][k],))
    sums.reduce()
    for place, (k, i) in enumerate(places):
      put(start + k, slots[i], sums[place])


def _own_sums(
  walk: SourceWalk, slots: range, rows: Sequence[Callable | None]
) -> tuple[tuple[Array, ...], ...]:
  """Returns per slot and row each thread's partial sum of products, over its own channels."""
  groups = walk.ring.rows.shape[1]

  def add_part(index: Array, totals: tuple) -> tuple:
    parts = [None if row is None else row(index) for row in rows]

    def add(own: tuple, slot: int) -> tuple:
      x = walk.load_part(slot, index)
      return tuple(
        total + x * (x if part is None else part) for total, part in zip(own, parts, strict=True)
      )

    return tuple(
      walk.where_valid(slot, functools.partial(add, slot=slot), own)
      for slot, own in zip(slots, totals, strict=True)
    )

  zeros = (row_ops.zeros(groups)[0],) * len(rows)
  totals = (zeros,) * len(slots)
  return lax.fori_loop(0, row_ops.num_parts(groups), add_part, totals)
