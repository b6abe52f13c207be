"""Sums over few arrays of one shape."""

import functools
import operator

import jax.numpy as jnp

from resjax.typing import Array

_FEW = 32


def sum_of_products(weights: Array, values: Array) -> Array:
  """Returns Σ_n weights_n ⊙ values_n over the first axis, [...].

  Up to 32 terms are added one after another, because XLA takes more than ten times as long to
  reduce a first axis on a CPU. With more the program would be long.

  Args:
    weights: [N, ...].
    values: [N, ...] with N >= 1; behind the first axis weights and values broadcast.

  Returns:
    [...] in the wider dtype of the two.
  """
  count = len(values)
  if count > _FEW:
    return jnp.sum(weights * values, axis=0)
  rows = zip(jnp.split(weights, count), jnp.split(values, count), strict=True)
  return functools.reduce(operator.add, (weight[0] * value[0] for weight, value in rows))
