"""Numbers of every pair of a read and a source of a token: a warp for a read, a lane for a source.

As a table [S, 32], S rounded up to a multiple of the warps of a program. What lies past the reads
and sources that there are may be anything. In shared memory a table has the same shape.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.kernels.depth_attention.mosaic_gpu import row_ops
from resjax.kernels.depth_attention.mosaic_gpu.row_ops import WARPS, Sums
from resjax.kernels.depth_attention.mosaic_gpu.sweep import Sweep
from resjax.kernels.depth_attention.operands import Operands
from resjax.typing import Array

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
  """Returns the rows of a table."""
  return math.ceil(num_reads / WARPS) * WARPS


def load(ref: Any) -> Array:
  """Reads a table."""
  return plgpu.layout_cast(ref[...], _TABLE)


def load_reads(ref: Any) -> Array:
  """Reads a number per read, [S]."""
  return plgpu.layout_cast(ref[...], _READS)


def load_sources(ref: Any) -> Array:
  """Reads a number per source, [32]."""
  return plgpu.layout_cast(ref[...], _SOURCES)


def spread_reads(column: Array) -> Array:
  """Returns the table whose columns all are [S]."""
  shape = *column.shape, MAX_SOURCES
  return plgpu.layout_cast(lax.broadcast_in_dim(column, shape, (0,)), _TABLE)


def spread_sources(row: Array, rows: int) -> Array:
  """Returns the table whose rows all are [32]."""
  return plgpu.layout_cast(lax.broadcast_in_dim(row, (rows, MAX_SOURCES), (1,)), _TABLE)


def valid_sources(operands: Operands, rows: int) -> Array:
  """Returns the table of whether a source counts."""
  slot = plgpu.broadcasted_iota(jnp.int32, (rows, MAX_SOURCES), 1, layout=_TABLE)
  num_valid, last = operands.counts[0], operands.counts[1]
  num_banked, end = operands.num_slots - len(operands.recent), operands.num_slots
  counts = slot < (end - 1 + last if operands.recent else end)
  return counts & ((slot >= num_banked) | (slot < num_valid)) if num_banked else counts


def dot_products(
  sweep: Sweep, sums: Sums, slots: range, rows: list[Callable | None], put: Callable
) -> None:
  """Hands put(index, slot, ⟨row, v⟩) the product of every row with every source of a group.

  It is 0 where a source does not count.

  Args:
    sweep: on the sources, which have arrived.
    sums: of at least as many rows as there are slots.
    slots: of the group.
    rows: index of a part of the channels -> that part of a row; None: of the source itself.
    put: called by all threads alike.
  """
  most = sums.parts.shape[0] // len(slots)
  for start in range(0, len(rows), most):
    some = rows[start : start + most]
    totals = _own_sums(sweep, slots, some)
    places = [(k, i) for k in range(len(some)) for i in range(len(slots))]
    for place, (k, i) in enumerate(places):
      sums.put(place, (totals[i][k],))
    sums.reduce()
    for place, (k, i) in enumerate(places):
      put(start + k, slots[i], sums[place])


def _own_sums(sweep: Sweep, slots: range, rows: list[Callable | None]) -> list[tuple[Array, ...]]:
  """Returns for every slot the products with all rows, summed over the parts."""
  groups = sweep.ring.rows.shape[1]

  def add_part(index, totals):
    parts = [None if row is None else row(index) for row in rows]

    def add(own, slot):
      x = sweep.load_part(slot, index)
      return tuple(
        total + x * (x if part is None else part) for total, part in zip(own, parts, strict=True)
      )

    return tuple(
      sweep.where_valid(slot, functools.partial(add, slot=slot), own)
      for slot, own in zip(slots, totals, strict=True)
    )

  zeros = (row_ops.zeros(groups)[0],) * len(rows)
  totals = (zeros,) * len(slots)
  return lax.fori_loop(0, row_ops.num_parts(groups), add_part, totals)
