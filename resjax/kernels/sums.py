"""Sums over few arrays of one shape, and copies of an array, whose cotangent is such a sum."""

import operator
from functools import partial, reduce

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Num

from resjax.base import Array, wide_dtype, wider

_FEW = 8


@partial(jax.checkpoint, prevent_cse=False)  # or the derivatives of both ways would be kept
def sum_of_products(weights: Num[Array, "N ..."], values: Num[Array, "N ..."]) -> Num[Array, "..."]:
  """Returns Σ_n weights_n ⊙ values_n over the first axis, [...].

  XLA takes more than ten times as long to reduce a first axis on a CPU as to add its terms one
  after another. On a TPU single terms, and above all their cotangents, which are put together
  again, make up to twice the traffic. So terms are added one after another on CPUs alone, more
  than 8 in a loop, which compiles as fast whatever their number.

  Args:
    weights: [N, ...].
    values: [N, ...] with N >= 1; behind the first axis weights and values broadcast.

  Returns:
    [...] in the wider dtype of the two.
  """
  dtype = wider(weights.dtype, values.dtype)
  weights, values = weights.astype(dtype), values.astype(dtype)
  cpu = _added if len(values) <= _FEW else _added_in_a_loop
  return lax.platform_dependent(weights, values, cpu=cpu, default=_reduced)


def repeated(x: Num[Array, "..."], count: int) -> Num[Array, "N ..."]:
  """Returns x `count` times along a new first axis, a copy for each stream.

  It is a broadcast whose cotangents, whatever their dtype, add up as `sum_of_products` does.
  """

  def copies(x: Array) -> Array:
    few = count <= _FEW
    return jnp.stack([x] * count) if few else lax.scan(lambda x, _: (x, x), x, length=count)[1]

  plain = partial(jnp.broadcast_to, shape=(count, *x.shape))
  return lax.platform_dependent(x.astype(wide_dtype(x)), cpu=copies, default=plain).astype(x.dtype)


def _added(weights: Array, values: Array) -> Array:
  rows = zip(jnp.split(weights, len(values)), jnp.split(values, len(values)), strict=True)
  return reduce(operator.add, (weight[0] * value[0] for weight, value in rows))


def _added_in_a_loop(weights: Array, values: Array) -> Array:
  # Devices share it as they share the terms.
  nothing = jnp.zeros_like(weights[0] * values[0])
  rows = weights, values
  return lax.scan(lambda total, row: (total + row[0] * row[1], None), nothing, rows)[0]


def _reduced(weights: Array, values: Array) -> Array:
  return jnp.sum(weights * values, axis=0)
