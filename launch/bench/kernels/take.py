"""Takes single reads out of the stacked reads of a depth block."""

import jax
from jax import lax

from resjax.base import Array, PyTree


@jax.custom_vjp
def take(reads: PyTree, slot: Array | int) -> tuple[PyTree, PyTree]:
  """Returns row `slot` of every leaf [S, ...] of `reads`, and `reads` to take the next row from.

  The reverse pass overwrites the row's cotangent in that of the returned `reads`, so that no arrays
  of S rows are added up. A row may therefore be taken only once; the cotangent of a row that is
  never taken is left unchanged.

  Args:
    reads: pytree of arrays [S, ...].
    slot: number of the row, 0..S-1; may be traced.
  """
  row = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, slot, keepdims=False), reads)
  return row, reads


def _take_forward(reads: PyTree, slot: Array | int) -> tuple[tuple[PyTree, PyTree], Array | int]:
  return take(reads, slot), slot


def _take_backward(slot: Array | int, cotangents: tuple[PyTree, PyTree]) -> tuple[PyTree, None]:
  d_row, d_reads = cotangents

  def put(d: Array, row: Array) -> Array:
    return lax.dynamic_update_index_in_dim(d, row, slot, 0)

  return jax.tree.map(put, d_reads, d_row), None


take.defvjp(_take_forward, _take_backward)
