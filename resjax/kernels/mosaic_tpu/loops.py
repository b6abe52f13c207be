"""Loops over the rows and channels of a tile, and other steps that kernels for TPUs share."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from resjax.base import Array
from resjax.kernels.mosaic_tpu.chip import ROWS
from resjax.kernels.operation import LANES, Ref

# Rows or channels of a tile: what `pl.ds` returns. Its declared type has not all of its attributes.
Span = Any


def for_each_row_group(tokens: int, run: Callable[[Array, Span], None], unroll: int = 1) -> None:
  """Calls run(index, rows) for each group of `ROWS` tokens of a tile, `unroll` groups at a time."""

  def body(index: Array, _: None) -> None:
    run(index, pl.ds(pl.multiple_of(index * ROWS, ROWS), ROWS))

  lax.fori_loop(0, tokens // ROWS, body, None, unroll=unroll)


def for_each_chunk(
  width: int,
  chunk: int,
  run: Callable[[Span, Any], Any],
  carry: Any = None,
  at_once: int = 16,
) -> Any:
  """Folds `carry = run(lanes, carry)` over all chunks of channels, up to `at_once` in a step."""
  count = width // chunk
  unrolled = max(n for n in range(1, at_once + 1) if count % n == 0)

  def step(index: Any, carry: Any) -> Any:
    for offset in range(unrolled):
      start = (index * unrolled + offset) * chunk
      start = start if isinstance(index, int) else pl.multiple_of(start, chunk)
      carry = run(pl.ds(start, chunk), carry)
    return carry

  return step(0, carry) if unrolled == count else lax.fori_loop(0, count // unrolled, step, carry)


def clear_rows_from(ref: Ref, end: Array | int) -> None:
  """Writes zeros to the rows of a reference [tokens, D] from row `end` on."""
  tokens, width = ref.shape
  wide = jnp.int32 if jnp.issubdtype(ref.dtype, jnp.integer) else jnp.float32

  def clear(_: Array, rows: Span) -> None:
    row = rows.start + lax.broadcasted_iota(jnp.int32, (ROWS, LANES), 0)
    for start in range(0, width, LANES):
      lanes = pl.ds(start, LANES)
      kept = jnp.where(row < end, ref[rows, lanes].astype(wide), 0)
      ref[rows, lanes] = kept.astype(ref.dtype)

  for_each_row_group(tokens, clear)


def wide(ref: Ref, *index: Any) -> Array:
  """Returns a chunk in float32."""
  return ref[index].astype(jnp.float32)


def dot(left: Array, right: Array, left_axis: int, right_axis: int) -> Array:
  """Returns the sum of products over an axis of each, in float32."""
  exact = lax.Precision.HIGHEST if left.dtype == jnp.float32 else lax.Precision.DEFAULT
  numbers = (((left_axis,), (right_axis,)), ((), ()))
  return lax.dot_general(left, right, numbers, precision=exact, preferred_element_type=jnp.float32)
