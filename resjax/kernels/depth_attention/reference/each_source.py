"""What a read does to each of its sources, which are never stacked.

On CPUs one slot of a large bank follows another, so that all that is done with a source finds it in
the cache, and slots that hold nothing are not touched. Elsewhere it is done to all slots at once.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array, PyTree, wide_dtype
from resjax.base.sharding import typed_like
from resjax.kernels.depth_attention.operands import Operands
from resjax.kernels.depth_attention.sources import Sources

# one(source, its row of each of the numbers) -> arrays of this source, and a term of a sum over all
# sources, which is zero where a slot holds nothing; both at least in float32.
One = Callable[..., tuple[PyTree, PyTree]]
_SMALL = 2**16  # bytes of a bank that is read at once, as one of few tokens is


def each_source(one: One, operands: Operands, *numbers: Array) -> tuple[PyTree, PyTree]:
  """Applies a function to every source, with the rows of `numbers` [N, ...].

  Returns:
    The arrays of all sources, small ones, joined: [N, ...], arbitrary for slots that hold nothing;
    and the sum of the terms.
  """
  found, total = _each_group(one, operands, numbers, itertools.repeat(None))
  return jax.tree.map(lambda *groups: jnp.concatenate(groups), *found), total


def add_to_cotangents(
  one: One, operands: Operands, d_sources: PyTree, *numbers: Array
) -> tuple[Array | None, tuple[Array, ...], Array]:
  """Adds what a function returns for every source to its cotangent, see `each_source`.

  Returns:
    Cotangents of the bank, or None, and of the recent sources; and the sum of the terms.
  """
  sources = operands.bank, operands.recent
  bank, recent = jax.tree.map(jnp.zeros_like, sources) if d_sources is None else d_sources
  found, total = _each_group(one, operands, numbers, Sources(recent, bank).groups())
  bank = None if bank is None else found.pop(0)
  return bank, tuple(group[0] for group in found), total


def sources_of(operands: Operands) -> Sources:
  """Returns the sources of a read."""
  return Sources(operands.recent, operands.bank, operands.counts[0])


def wide(x: Array) -> Array:
  """Returns x in float32 or wider."""
  return x.astype(wide_dtype(x))


def _each_group(
  one: One, operands: Operands, numbers: Sequence[Array], onto: Iterable[Array | None]
) -> tuple[list[PyTree], PyTree]:
  """Returns the arrays of each group, the bank and each recent source, and the sum of all terms."""
  groups = sources_of(operands).groups()
  ends = list(itertools.accumulate(len(group) for group in groups))[:-1]
  parts = zip(groups, *(jnp.split(rows, ends) for rows in numbers), strict=True)
  found = []
  for both in zip(parts, onto, strict=False):
    if both[0][0] is operands.bank and operands.bank.nbytes > _SMALL:
      cpu, default = partial(_in_turn, one, operands.counts[0]), partial(_at_once, one)
      found.append(lax.platform_dependent(*both, cpu=cpu, default=default))
    else:
      found.append(_at_once(one, *both))
  terms = [term for _, term in found]
  return [arrays for arrays, _ in found], jax.tree.map(lambda *of: sum(of[1:], of[0]), *terms)


def _at_once(one: One, rows: tuple[Array, ...], onto: Array | None) -> tuple[PyTree, PyTree]:
  # What slots that hold nothing give is multiplied by zero.
  arrays, terms = jax.vmap(one)(*rows)
  return _added(onto, arrays), jax.tree.map(lambda term: jnp.sum(term, axis=0), terms)


def _in_turn(
  one: One, count: Array, rows: tuple[Array, ...], onto: Array | None
) -> tuple[PyTree, PyTree]:
  def row(n: Array, arrays: PyTree) -> PyTree:
    return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, n, keepdims=False), arrays)

  def step(n: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
    found, total = carry
    arrays, term = one(*row(n, rows))
    arrays = _added(None if onto is None else row(n, found), arrays)
    put = partial(lax.dynamic_update_index_in_dim, index=n, axis=0)
    return jax.tree.map(put, found, arrays), jax.tree.map(jnp.add, total, term)

  def step_if_valid(n: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
    return lax.cond(n < count, step, lambda _, carry: carry, n, carry)

  shapes = jax.eval_shape(partial(_at_once, one), rows, onto)
  zeros = jax.tree.map(lambda a: typed_like(jnp.zeros(a.shape, a.dtype), a), shapes)
  first = zeros if onto is None else (onto, zeros[1])
  return lax.fori_loop(0, len(rows[0]), step_if_valid, first)


def _added(onto: Array | None, arrays: PyTree) -> PyTree:
  return arrays if onto is None else (wide(onto) + arrays).astype(onto.dtype)
