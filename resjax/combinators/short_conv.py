"""Short causal convolutions over tokens, one filter per channel, that stay within segments."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from resjax.base import Array, wide_dtype
from resjax.base.sharding import laid_out
from resjax.combinators.numerics import recomputed
from resjax.kernels import repeated, sum_of_products


@recomputed
def expand(
  x: Array, filters: Array, segment_ids: Array | None = None, past: Array | None = None
) -> Array:
  """Returns y_r = Σ_s filters_sr ⊙ shift(x, s): R short convolutions of one row.

  Args:
    x: [B, T, D].
    filters: [taps, R, D]; tap s looks s tokens back.
    segment_ids: of the P past tokens and of x [B, P + T]; None: one segment per row.
    past: the P tokens before x [B, P, D]; None: P = 0.

  Returns:
    [R, B, T, D] in the dtype of x; the sum is at least float32.
  """
  known = after(past, x).astype(wide_dtype(x))
  filters = filters[:, :, None, None]
  moved = (repeated(shift(known, s, segment_ids), filters.shape[1]) for s in range(len(filters)))
  y = functools.reduce(jnp.add, map(jnp.multiply, filters, moved))
  return y[..., known.shape[-2] - x.shape[-2] :, :].astype(x.dtype)


@recomputed
def pool(
  x: Array, filters: Array, segment_ids: Array | None = None, past: Array | None = None
) -> Array:
  """Returns y = Σ_s shift(Σ_r filters_sr ⊙ x_r, s), a sum of R short convolutions.

  The sum over r comes first, so that single rows are shifted and never all of x.

  Args:
    x: [R, B, T, D]; with one tap and no past any [R, ..., D].
    filters: [taps, R, D]; tap s looks s tokens back.
    segment_ids: of the P past tokens and of x [B, P + T]; None: one segment per row.
    past: the P tokens before x [R, B, P, D]; None: P = 0.

  Returns:
    [B, T, D] in the dtype of x; the sums are at least float32.
  """
  known = after(past, x).astype(wide_dtype(x))
  taps, rows, width = filters.shape
  filters = filters.reshape(taps, rows, *(1,) * (x.ndim - 2), width)
  pooled = [sum_of_products(weight, known) for weight in filters]
  first, *others = (shift(row, steps, segment_ids) for steps, row in enumerate(pooled))
  y = sum(others, start=first)
  return (y if past is None else y[..., past.shape[-2] :, :]).astype(x.dtype)


def shift(x: Array, steps: int, segment_ids: Array | None = None) -> Array:
  """Returns y_t = x_{t − steps}, or zero where there is no such token in the segment of t.

  Args:
    x: [B, T, D].
    steps: at least 0.
    segment_ids: [B, T]; None: one segment per row.

  Returns:
    [B, T, D].
  """
  if steps == 0:
    return x
  length, spec = x.shape[1], jax.typeof(x).sharding.spec
  x = laid_out(x, PartitionSpec(spec[0], None, spec[2]))  # whole rows: tokens move
  moved = jnp.pad(x, ((0, 0), (steps, 0), (0, 0)))[:, :length]
  if segment_ids is not None:
    ids = laid_out(segment_ids, PartitionSpec(spec[0], None))
    of_moved = jnp.pad(ids, ((0, 0), (steps, 0)))[:, :length]
    moved = jnp.where((of_moved == ids)[..., None], moved, 0)
  return laid_out(moved, spec)


def after(past: Array | None, x: Array) -> Array:
  """Returns past tokens [..., P, D] and new ones [..., T, D] as one [..., P + T, D]."""
  return x if past is None else jnp.concatenate([past, x], axis=-2)


def latest(past: Array, x: Array, counts: Array) -> Array:
  """Returns the last P tokens of each row.

  Args:
    past: P tokens [..., B, P, D].
    x: those that follow [..., B, T, D]; in each row padding comes last.
    counts: how many of these are no padding [B].

  Returns:
    [..., B, P, D].
  """
  slots = counts[:, None] + jnp.arange(past.shape[-2])[None]
  leading = (1,) * (x.ndim - 3)
  return jnp.take_along_axis(after(past, x), slots.reshape(*leading, *slots.shape, 1), axis=-2)
