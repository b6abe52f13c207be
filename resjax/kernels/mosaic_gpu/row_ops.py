"""Rows of D channels in the registers of a warpgroup, and sums over them.

A row lies in memory as [D / 128, 128], because an asynchronous copy moves at most 256 elements
along an axis. In registers it is a tuple of parts [v, 128], and a thread holds v neighbouring
channels of each part. Kernels are compiled without automatic barriers, so they call `synchronize`
wherever threads exchange something, and wherever shared memory passes from threads to asynchronous
copies or back.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.base import Array
from resjax.kernels.operation import LANES, Ref

WARPS = 4
Row = tuple[Array, ...]

synchronize = plgpu.commit_smem


def part_size(groups: int) -> int:
  """Returns v for rows [groups, 128]."""
  return next(size for size in (4, 2, 1) if groups % size == 0)


def num_parts(groups: int) -> int:
  """Returns how many parts rows [groups, 128] have."""
  return groups // part_size(groups)


def load(ref: Ref) -> Row:
  """Reads a row [D / 128, 128] of shared or global memory as float32."""
  return tuple(load_part(ref, index) for index in range(num_parts(ref.shape[0])))


def load_part(ref: Ref, index: Array | int) -> Array:
  """Reads a part of a row of shared or global memory as float32."""
  return _load_part(ref, index, part_size(ref.shape[0])).astype(jnp.float32)


def load_words(ref: Ref, index: int, size: int) -> Array:
  """Reads a part [size, 128] of a row of words as int32."""
  return _load_part(ref, index, size).astype(jnp.int32)


def _load_part(ref: Ref, index: Array | int, size: int) -> Array:
  return plgpu.layout_cast(ref[pl.ds(index * size, size)], _layout(size))


def store(ref: Ref, row: Row) -> None:
  """Writes a row to memory in the dtype of the reference."""
  for index, part in enumerate(row):
    store_part(ref, index, part)


def store_part(ref: Ref, index: Array | int, part: Array) -> None:
  """Writes a part of a row to memory in the dtype of the reference."""
  ref[pl.ds(index * part.shape[0], part.shape[0])] = part.astype(ref.dtype)


def add_part(total: Row | None, ref: Ref | None, index: int, term: Array) -> Array:
  """Adds to a part of a total that is in registers, or in memory if there is a reference to it.

  Returns:
    The part of the total. One in memory has been written there.
  """
  if ref is None:
    assert total is not None
    return total[index] + term
  part = load_part(ref, index) + term
  store_part(ref, index, part)
  return part


def zeros(groups: int) -> Row:
  """Returns a row of zeros."""
  size = part_size(groups)
  part = plgpu.layout_cast(jnp.zeros((size, LANES), jnp.float32), _layout(size))
  return (part,) * num_parts(groups)


def zero_parts(groups: int, count: int) -> tuple[Array, ...]:
  """Returns zeros to which a loop over the parts of rows adds."""
  return (zeros(groups)[0],) * count


def _layout(size: int) -> Any:
  return plgpu.Layout.WG_STRIDED((size, LANES), vec_size=size)


def rounded(row: Row, dtype: Any) -> Row:
  """Returns a float32 row, rounded to the precision of a dtype."""
  return tuple(part.astype(dtype).astype(jnp.float32) for part in row)


def scaled(row: Row, factor: Array, gain: Ref) -> Row:
  """Returns row · factor ⊙ gain."""
  return each(lambda part, gain: part * factor * gain, row, load(gain))


def each(function: Callable, *rows: Row) -> Row:
  """Applies a function to the parts of rows, one part of each row at a time."""
  return tuple(map(function, *rows))


def each_part(groups: int, function: Callable, carry: tuple) -> tuple:
  """Calls carry = function(index, carry) for all parts of rows [groups, 128]."""
  return lax.fori_loop(0, num_parts(groups), function, carry)


def weighted(factors: Sequence[Array], parts: Sequence[Array]) -> Array:
  """Returns Σ_i factor_i part_i."""
  terms = [factor * part for factor, part in zip(factors, parts, strict=True)]
  return sum(terms[1:], terms[0])


def numbers_of(ref: Ref | None, token: Array) -> list[Array]:
  """Returns the numbers of a token in [T, n]; none if there is no such array."""
  return [] if ref is None else [ref[token, i] for i in range(ref.shape[1])]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ChannelSums:
  """Sums over the channels of several rows at once, which cost little more than the sum of one.

  Every thread adds up its own channels of a row and writes the sum to shared memory. Then each warp
  reduces every fourth row, and the totals return to all threads through shared memory.

  Attributes:
    parts: reference, float32 [rows, 128 v], the number of rows a multiple of 4.
    totals: reference, float32 [rows].
  """

  parts: Ref
  totals: Ref

  @classmethod
  def scratch(cls, rows: int, groups: int) -> "ChannelSums":
    """Returns the shared memory to allocate for sums of rows [groups, 128]."""
    shape = (rows, part_size(groups) * LANES)
    return cls(plgpu.SMEM(shape, jnp.float32), plgpu.SMEM((rows,), jnp.float32))

  def put(self, index: int, products: Row) -> None:
    """Sets row number `index` of those that will be summed."""
    own = sum(products[1:], products[0])
    self.parts[index] = own.reshape(own.size)

  def reduce(self) -> None:
    """Sums all rows; the sum of a row that was not put is arbitrary."""
    synchronize()
    width = 4 if self.parts.shape[1] % (4 * 32) == 0 else 1
    tiling = plgpu.Tiling(((WARPS, 32 * width), (width,)))
    layout = plgpu.Layout.TILED(tiling, warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1)
    self.totals[...] = jnp.sum(plgpu.layout_cast(self.parts[...], layout), axis=1)
    synchronize()

  def __getitem__(self, index: int) -> Array:
    """Returns the sum of row number `index`."""
    return self.totals[index]

  def inverse_rms(self, row: Row, eps: float) -> Array:
    """Returns 1 / sqrt(mean(row²) + eps); takes the place of the rows that were put before."""
    self.put(0, each(jnp.multiply, row, row))
    self.reduce()
    return lax.rsqrt(self[0] / (len(row) * row[0].size) + eps)
