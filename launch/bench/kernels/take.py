"""Taking single reads out of those of a whole depth block."""

import jax
from jax import lax

from resjax.typing import Array, PyTree


@jax.custom_vjp
def take(reads: PyTree, slot: Array | int) -> tuple[PyTree, PyTree]:
  """Returns row `slot` of every leaf [S, ...] of `reads`, and `reads` for who takes the next row.

  The reverse pass writes the cotangent of the row into that of the returned `reads`, whatever
  stood there: no array of S rows is added up. Each row is taken once at most; what the cotangent
  of a row that nobody takes was, it stays.

  Args:
    reads: pytree of arrays [S, ...].
    slot: 0..S-1; may be traced.
  """
  row = jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, slot, keepdims=False), reads)
  return row, reads


def _take_forward(reads, slot):
  return take(reads, slot), slot


def _take_backward(slot, cotangents):
  d_row, d_reads = cotangents

  def put(d, row):
    return lax.dynamic_update_index_in_dim(d, row, slot, 0)

  return jax.tree.map(put, d_reads, d_row), None


take.defvjp(_take_forward, _take_backward)
