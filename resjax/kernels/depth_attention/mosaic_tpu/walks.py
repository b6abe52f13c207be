"""How the kernels of two-phase depth attention for TPUs walk a tile."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS
from resjax.typing import Array


def for_each_row_group(tokens: int, run: Callable[[Array, Any], None]) -> None:
  """Runs with the index of each group of `ROWS` tokens of a tile, and its rows."""

  def body(index, _):
    run(index, pl.ds(pl.multiple_of(index * ROWS, ROWS), ROWS))

  lax.fori_loop(0, tokens // ROWS, body, None)


def for_each_chunk(
  width: int, chunk: int, run: Callable[[Any, Any], Any], carry: Any = None, at_once: int = 16
) -> Any:
  """Folds `carry = run(lanes, carry)` over all chunks of channels, up to `at_once` in a step."""
  count = width // chunk
  unrolled = max(n for n in range(1, at_once + 1) if count % n == 0)

  def span(index, carry):
    for offset in range(unrolled):
      start = (index * unrolled + offset) * chunk
      start = start if isinstance(index, int) else pl.multiple_of(start, chunk)
      carry = run(pl.ds(start, chunk), carry)
    return carry

  return span(0, carry) if unrolled == count else lax.fori_loop(0, count // unrolled, span, carry)


def clear_rows_from(ref: Any, end: Array | int) -> None:
  """Zeroes the rows [tokens, D] from `end` on."""
  tokens, width = ref.shape
  wide = jnp.int32 if jnp.issubdtype(ref.dtype, jnp.integer) else jnp.float32

  def clear(_, rows):
    row = rows.start + lax.broadcasted_iota(jnp.int32, (ROWS, LANES), 0)
    for start in range(0, width, LANES):
      lanes = pl.ds(start, LANES)
      kept = jnp.where(row < end, ref[rows, lanes].astype(wide), 0)
      ref[rows, lanes] = kept.astype(ref.dtype)

  for_each_row_group(tokens, clear)


def two_parts(num_tiles: int) -> tuple[int, int]:
  """Returns a grid: parts that may run on cores of their own, tiles of each."""
  parts = 1 if num_tiles % 2 else 2
  return parts, num_tiles // parts
