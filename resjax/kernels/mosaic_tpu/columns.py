"""Numbers per token: on the lanes of registers, [n, TOKENS], or as columns of a matrix.

A kernel multiplies chunks of channels by a column, which it spreads over lanes.
"""

from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array
from resjax.kernels.mosaic_tpu.chip import ROWS
from resjax.kernels.mosaic_tpu.loops import Span
from resjax.kernels.operation import LANES, Ref

TOKENS = LANES  # of a tile


def write(rows: Array, scratch: Ref) -> None:
  """Writes numbers per token [n, TOKENS] to columns of scratch [TOKENS, at least n]."""
  count = len(rows)
  for start in range(0, count, LANES):
    part = rows[start : start + LANES]
    missing = LANES - len(part)
    if missing:
      part = jnp.concatenate([part, jnp.zeros((missing, TOKENS), jnp.float32)])
    scratch[:, start : start + LANES] = part.T


def read(scratch: Ref, count: int) -> Array:
  """Returns the first columns of scratch as numbers per token [count, TOKENS]."""
  parts = [scratch[:, start : start + LANES].T for start in range(0, count, LANES)]
  return (parts[0] if len(parts) == 1 else jnp.concatenate(parts))[:count]


def room(count: int) -> Any:
  """Returns scratch for columns."""
  return pltpu.VMEM((TOKENS, -(-count // LANES) * LANES), jnp.float32)


def number_room(rows: int) -> Any:
  """Returns scratch for numbers per token [rows, TOKENS]."""
  return pltpu.VMEM((rows, TOKENS), jnp.float32)


def spread(ref: Ref, rows: Span, number: int) -> Array:
  """Returns column `number` of a group of rows on all lanes [ROWS, LANES]."""
  return jnp.broadcast_to(ref[rows, number : number + 1], (ROWS, LANES))


def put(ref: Ref, rows: Span, number: int, chunk: Array) -> None:
  """Writes the sums over lanes of [ROWS, LANES] to a column."""
  ref[rows, number : number + 1] = jnp.sum(chunk, axis=1, keepdims=True)


def turned(x: Array) -> Array:
  """Returns the transpose of [TOKENS, n] with n rounded up to whole registers."""
  missing = -x.shape[1] % LANES
  if missing:
    x = jnp.concatenate([x, jnp.zeros((TOKENS, missing), x.dtype)], axis=1)
  parts = [x[:, start : start + LANES].T for start in range(0, x.shape[1], LANES)]
  return parts[0] if len(parts) == 1 else jnp.concatenate(parts)
