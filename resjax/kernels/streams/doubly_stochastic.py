"""Sinkhorn's iteration, which turns a positive matrix into a doubly stochastic one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from resjax.base import Array

_COLUMNS, _ROWS = 0, 1  # the axis that is summed over
_FEW = 256  # tokens; with more of them a loop is slower

Scan = Callable[..., tuple[Array, Any]]  # `_looped` or `_unrolled`
_Divided = tuple[Array, Array]  # a matrix after a division of its columns, then one of its rows


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def sinkhorn(iterations: int, logits: Float[Array, "R R ..."]) -> Float[Array, "R R ..."]:
  """Returns exp(logits), columns and then rows divided by their sums, `iterations` times.

  The first iteration runs on logarithms, so nothing overflows and no sum is 0. From then on every
  sum lies between 1/R and R, and products are enough. With y the result of a division of columns
  or rows and l its logarithm, dl ← dl − y Σ dl takes the derivative back through it.

  Args:
    iterations: at least 1.
    logits: logarithms of a matrix for each index of the further axes.

  Returns:
    The matrices, whose rows sum to 1.
  """
  return _scanned(partial(_last, iterations), logits)


def _last(iterations: int, scan: Scan, logits: Array) -> Array:
  return scan(lambda m, _: (_divide(m)[1], None), _first(logits)[1], length=iterations - 1)[0]


def _forward(iterations: int, logits: Array) -> tuple[Array, Array]:
  return sinkhorn(iterations, logits), logits


def _backward(iterations: int, logits: Array, d: Array) -> tuple[Array]:
  return (_scanned(partial(_pulled, iterations), logits, d),)


def _pulled(iterations: int, scan: Scan, logits: Array, d: Array) -> Array:
  """Returns the cotangent of the logits from that of the matrix."""

  def divide(matrix: Array, _: None) -> tuple[Array, _Divided]:
    divided = _divide(matrix)
    return divided[1], divided

  first = _first(logits)
  matrix, rounds = scan(divide, first[1], length=iterations - 1)
  d, _ = scan(lambda d, divided: (_pull(d, divided), None), d * matrix, rounds, reverse=True)
  return _pull(d, first)


def _first(logits: Array) -> _Divided:
  by_columns = logits - _log_sum(logits, _COLUMNS)
  return jnp.exp(by_columns), jnp.exp(by_columns - _log_sum(by_columns, _ROWS))


def _divide(matrix: Array) -> _Divided:
  by_columns = matrix * (1 / jnp.sum(matrix, axis=_COLUMNS, keepdims=True))
  return by_columns, by_columns * (1 / jnp.sum(by_columns, axis=_ROWS, keepdims=True))


def _pull(d: Array, divided: _Divided) -> Array:
  """Returns the cotangent of the logarithm before two divisions from that after them."""
  by_columns, by_rows = divided
  d = d - by_rows * jnp.sum(d, axis=_ROWS, keepdims=True)
  return d - by_columns * jnp.sum(d, axis=_COLUMNS, keepdims=True)


def _log_sum(logits: Array, axis: int) -> Array:
  top = jnp.max(logits, axis=axis, keepdims=True)
  return top + jnp.log(jnp.sum(jnp.exp(logits - top), axis=axis, keepdims=True))


def _scanned(function: Callable[..., Array], logits: Array, *others: Array) -> Array:
  """Calls a function of a scan and arrays.

  XLA computes small arrays again within each other on CPUs, so that rounds one after another are
  compiled for longer than all else in a model, and run no faster than a loop.
  """
  unrolled = partial(function, _unrolled)
  if logits[0, 0].size > _FEW:
    return unrolled(logits, *others)
  return lax.platform_dependent(logits, *others, cpu=partial(function, _looped), default=unrolled)


def _looped(
  body: Callable[[Array, Any], tuple[Array, Any]],
  carry: Array,
  rounds: Any = None,
  *,
  length: int | None = None,
  reverse: bool = False,
) -> tuple[Array, Any]:
  """Does what `lax.scan` does, whose `reverse` JAX's interpreter of TPU kernels overlooks."""
  inputs = jax.tree.map(lambda x: x[::-1], rounds) if reverse else rounds
  return lax.scan(body, carry, inputs, length=length)


def _unrolled(
  body: Callable[[Array, Any], tuple[Array, Any]],
  carry: Array,
  rounds: list[_Divided] | None = None,
  *,
  length: int = 0,
  reverse: bool = False,
) -> tuple[Array, list[Any]]:
  """Does what `lax.scan` does, with lists for stacks, which no kernel could hold."""
  inputs: list[Any] = [None] * length if rounds is None else rounds
  found = []
  for value in reversed(inputs) if reverse else inputs:
    carry, out = body(carry, value)
    found.append(out)
  return carry, found


sinkhorn.defvjp(_forward, _backward)
