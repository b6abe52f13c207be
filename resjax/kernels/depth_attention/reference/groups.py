"""Sources as a few groups [n, ..., D], the bank and each recent source, which are never stacked.

Arrays with one number per slot are small: they are joined along the axis of the slots.
"""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from resjax.base import Array, PyTree, wide_dtype
from resjax.kernels.depth_attention.operands import Operands
from resjax.kernels.depth_attention.sources import Sources


def sources_of(operands: Operands) -> Sources:
  """Returns the sources of a read."""
  return Sources(operands.recent, operands.bank, operands.counts[0])


def cotangent_groups(operands: Operands, d_sources: PyTree) -> Sequence[Array | float]:
  """Returns for every group the cotangent that later reads left, or 0.0 if there is none.

  Args:
    operands: of the read.
    d_sources: cotangents of the returned bank and recent sources, or None.
  """
  if d_sources is None:
    return [0.0] * len(sources_of(operands).groups())
  bank, recent = d_sources
  return [wide(group) for group in Sources(recent, bank).groups()]


def split(joined: Array, groups: Sequence[Array], axis: int) -> list[Array]:
  """Returns the parts of numbers per slot that belong to each group."""
  ends = list(itertools.accumulate(len(group) for group in groups))
  return jnp.split(joined, ends[:-1], axis)


def joined(parts: Sequence[PyTree]) -> PyTree:
  """Returns numbers per slot of all groups, joined along the first axis."""
  return jax.tree.map(lambda *of_groups: jnp.concatenate(of_groups), *parts)


def wide(x: Array) -> Array:
  """Returns x in float32 or wider."""
  return x.astype(wide_dtype(x))
