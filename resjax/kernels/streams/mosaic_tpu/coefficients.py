"""The coefficients of a tile of tokens, and their derivative, inside the kernels for TPUs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from resjax.base import Array, PyTree
from resjax.kernels.mosaic_tpu import TOKENS
from resjax.kernels.operation import Ref
from resjax.kernels.streams.mosaic_tpu.plan import Plan
from resjax.kernels.streams.operands import Read, Stats, each_coefficient


def write_coefficients(
  read: Read, plan: Plan, products: Ref, mean_squares: Ref, parameters: PyTree, target: Ref
) -> Array:
  """Writes M and b of the next write to target [R (R + 1), TOKENS]; returns p [R, TOKENS].

  Args:
    read: options.
    plan: sizes.
    products, mean_squares: references to what is kept of the tile, see `Stats`, or None.
    parameters: tree of references to the parameters.
    target: reference.
  """
  p, mixing, b = _coefficients(read, plan, _stats(plan, products, mean_squares), _read(parameters))
  count = plan.num_streams
  for r in range(count):
    start = r * (count + 1)
    target[start : start + count, :] = _flat(plan, mixing[r])
    target[start + count : start + count + 1, :] = _flat(plan, b[r : r + 1])
  return _flat(plan, p)


def pull_back(
  read: Read, plan: Plan, products: Ref, mean_squares: Ref, parameters: PyTree
) -> tuple[Array, Callable[[Array, Ref], tuple[list[Array], Array | None, PyTree]]]:
  """Returns p [R, TOKENS], and the derivative of all coefficients.

  The derivative is a function of the cotangent of p and of a reference to the cotangent of the
  weights of the next write. It returns the cotangents of the products, [K, TOKENS] of all streams
  together or of every stream; of the mean squares [R, TOKENS] or None; and of the parameters.

  Args:
    read: options.
    plan: sizes.
    products, mean_squares: references to what is kept of the tile, see `Stats`, or None.
    parameters: tree of references to the parameters.
  """
  stats = _stats(plan, products, mean_squares)
  (p, *_), back = jax.vjp(
    lambda stats, parameters: _coefficients(read, plan, stats, parameters), stats, _read(parameters)
  )

  def pull(d_p: Array, d_weights: Ref) -> tuple[list[Array], Array | None, PyTree]:
    d_stats, d_parameters = back((_tall(plan, d_p), *_apart(plan, d_weights)))
    if not plan.num_columns:
      return [], None, d_parameters
    found = list(d_stats.products) if plan.shared else [d_stats.products]
    d_products = [_flat(plan, d) for d in found]
    return d_products, _flat(plan, d_stats.mean_squares), d_parameters

  return _flat(plan, p), pull


def _coefficients(
  read: Read, plan: Plan, stats: Stats, parameters: PyTree
) -> tuple[Array, Array, Array]:
  return each_coefficient(read, plan.num_streams, stats, parameters, plan.token_axes)


def _read(tree: PyTree) -> PyTree:
  return jax.tree.map(lambda ref: ref[...], tree)


def _stats(plan: Plan, products: Ref, mean_squares: Ref) -> Stats:
  """Returns the statistics of a tile, shaped as `Coefficients` take them."""
  if not plan.num_columns:
    return Stats(None, None)
  kept: Any = products[...]
  if plan.shared:
    kept = kept.reshape(plan.num_streams, plan.num_columns, 1, TOKENS)
  else:
    kept = _tall(plan, kept)
  return Stats(kept, _tall(plan, mean_squares[...]))


def _apart(plan: Plan, weights: Ref) -> tuple[Array, Array]:
  """Returns M [R, R, ...] and b [R, ...] of weights [R (R + 1), TOKENS]."""
  count = plan.num_streams
  if not plan.packed:
    square = weights[...].reshape(count, count + 1, 1, TOKENS)
    return square[:, :count], square[:, count]
  starts = range(0, plan.num_weights, count + 1)
  mixing = jnp.stack([weights[start : start + count, :] for start in starts])
  ends = [start + count for start in starts]
  return mixing, jnp.concatenate([weights[end : end + 1, :] for end in ends])


def _tall(plan: Plan, x: Array) -> Array:
  """Returns numbers [n, TOKENS] reshaped to the token axes of coefficients."""
  return x if plan.packed else x[:, None]


def _flat(plan: Plan, x: Array) -> Array:
  """Returns numbers [n, ...] with the token axes of coefficients as [n, TOKENS]."""
  return x if plan.packed else x[:, 0]
