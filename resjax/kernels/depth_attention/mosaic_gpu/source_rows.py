"""Where the sources of a token lie in the memory of a GPU, and where their cotangents go."""

import functools

import jax

from resjax.base import Array, PyTree
from resjax.kernels.depth_attention.operands import Operands, Read
from resjax.kernels.mosaic_gpu import Stream, call
from resjax.kernels.operation import Ref


def fold_operands(operands: Operands) -> Operands:
  """Folds all operands but the counts."""
  return call.fold(operands._replace(counts=None))._replace(counts=operands.counts)


def fresh_sources(read: Read, operands: Operands) -> PyTree:
  """Returns the shapes of the cotangents of bank and recent sources that a kernel allocates.

  There are none if sources are threaded: the cotangents of later reads are added to in place.
  """
  if read.threaded:
    return None, ()
  sources = operands.bank, operands.recent
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), sources)


def source_streams(operands: Operands) -> tuple[Stream, ...]:
  """Returns for every slot where the sources of a token lie, and whether it counts."""
  num_valid, last = operands.counts[0], operands.counts[1]
  num_banked = operands.num_slots - len(operands.recent)

  def stream(slot: int) -> Stream:
    valid = num_valid > slot if slot < num_banked else None
    if operands.recent and slot == operands.num_slots - 1:
      valid = last > 0
    return Stream(functools.partial(row_of, operands.bank, operands.recent, slot), valid)

  return tuple(map(stream, range(operands.num_slots)))


def row_of(bank: Ref, recent: tuple[Ref, ...], slot: int, token: Array) -> Ref:
  """Returns the reference of a token's row in a slot of a bank, or None, and recent arrays."""
  num_banked = 0 if bank is None else bank.shape[0]
  if slot < num_banked:
    return bank.at[slot, token]
  return recent[slot - num_banked].at[token]
