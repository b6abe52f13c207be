"""What a direct read does to each of its sources: to one after another, or to all at once."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array, PyTree
from resjax.base.sharding import typed_like
from resjax.kernels.depth_attention.operands import Operands
from resjax.kernels.depth_attention.reference.groups import sources_of, split, wide
from resjax.kernels.depth_attention.sources import Sources

# one(source, its row of each of the numbers) -> arrays of this source, a term of the sum.
One = Callable[..., tuple[PyTree, PyTree]]


def each_source(
  one: One, operands: Operands, *numbers: Array, onto: PyTree = None
) -> tuple[list[PyTree], PyTree]:
  """Applies a function to every source.

  On CPUs one slot of the bank follows another, so that all that is done with a source finds it in
  the cache, and slots that hold nothing are not touched. Elsewhere it is done to all slots at once.

  Args:
    one: the function; its results are at least float32.
    operands: of the read.
    *numbers: arrays [N, ...].
    onto: bank and recent arrays, to which the array of each source is added; or None.

  Returns:
    For every group the arrays [n, ...], and the sum of the terms. Of slots that hold nothing the
    arrays are arbitrary, and the terms must be zero.
  """
  groups = sources_of(operands).groups()
  totals = [None] * len(groups) if onto is None else Sources(onto[1], onto[0]).groups()
  rows = zip(groups, *(split(part, groups, 0) for part in numbers), strict=True)
  found = [_group(one, operands.counts[0], *both) for both in zip(totals, rows, strict=True)]
  arrays, terms = zip(*found, strict=True)
  return list(arrays), jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *terms)


def _group(one: One, count: Array, total: PyTree, rows: tuple[Array, ...]) -> tuple[PyTree, PyTree]:
  if len(rows[0]) == 1:
    return _at_once(one, count, total, rows)
  cpu, default = (partial(way, one) for way in (_in_turn, _at_once))
  return lax.platform_dependent(count, total, rows, cpu=cpu, default=default)


def _at_once(one: One, _: Array, total: PyTree, rows: tuple[Array, ...]) -> tuple[PyTree, PyTree]:
  arrays, terms = jax.vmap(one)(*rows)
  return _added(total, arrays), jax.tree.map(lambda a: jnp.sum(a, axis=0), terms)


def _in_turn(
  one: One, count: Array, total: PyTree, rows: tuple[Array, ...]
) -> tuple[PyTree, PyTree]:
  def row(n: Array, arrays: PyTree) -> PyTree:
    return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, n, keepdims=False), arrays)

  def step(n: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
    arrays, term = one(*row(n, rows))
    arrays = _added(None if total is None else row(n, carry[0]), arrays)
    put = partial(lax.dynamic_update_index_in_dim, index=n, axis=0)
    return jax.tree.map(put, carry[0], arrays), jax.tree.map(jnp.add, carry[1], term)

  def step_if_there(n: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
    return lax.cond(n < count, step, lambda _, carry: carry, n, carry)

  shapes = jax.eval_shape(partial(_at_once, one), count, total, rows)
  first = jax.tree.map(lambda a: typed_like(jnp.zeros(a.shape, a.dtype), a), shapes)
  return lax.fori_loop(
    0, len(rows[0]), step_if_there, (first[0] if total is None else total, first[1])
  )


def _added(total: PyTree, arrays: PyTree) -> PyTree:
  return arrays if total is None else (wide(total) + arrays).astype(total.dtype)
