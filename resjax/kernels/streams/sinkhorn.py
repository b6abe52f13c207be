"""Sinkhorn's iteration, which turns a positive matrix into a doubly stochastic one."""

from functools import partial

import jax
import jax.numpy as jnp

from resjax.typing import Array

_COLUMNS, _ROWS = 0, 1  # the axis that is summed over


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def sinkhorn(iterations: int, logits: Array) -> Array:
  """Returns exp(logits), columns and then rows divided by their sums, `iterations` times.

  The first iteration runs on logarithms, so nothing overflows and no sum is 0. From then on every
  sum lies between 1/R and R, and products are enough. With y the result of a division of columns
  or rows and l its logarithm, dl ← dl − y Σ dl takes the derivative back through it.

  Args:
    iterations: at least 1.
    logits: [R, R, ...].

  Returns:
    [R, R, ...], rows of which sum to 1.
  """
  return _divided(iterations, logits)[-1]


def _divided(iterations: int, logits: Array) -> list[Array]:
  """Returns the matrix after each division, columns and rows in turn."""
  by_columns = logits - _log_sum(logits, _COLUMNS)
  matrix = jnp.exp(by_columns - _log_sum(by_columns, _ROWS))
  found = [jnp.exp(by_columns), matrix]
  for _ in range(iterations - 1):
    for axis in (_COLUMNS, _ROWS):
      matrix = matrix * (1 / jnp.sum(matrix, axis=axis, keepdims=True))
      found.append(matrix)
  return found


def _log_sum(logits: Array, axis: int) -> Array:
  top = jnp.max(logits, axis=axis, keepdims=True)
  return top + jnp.log(jnp.sum(jnp.exp(logits - top), axis=axis, keepdims=True))


def _forward(iterations: int, logits: Array) -> tuple[Array, Array]:
  return sinkhorn(iterations, logits), logits


def _backward(iterations: int, logits: Array, d: Array) -> tuple[Array]:
  found = _divided(iterations, logits)
  d = d * found[-1]
  for number in reversed(range(len(found))):
    d = d - found[number] * jnp.sum(d, axis=(_COLUMNS, _ROWS)[number % 2], keepdims=True)
  return (d,)


sinkhorn.defvjp(_forward, _backward)
