"""Norms over the model width."""

import jax
from flax import nnx

from resjax.typing import Array

NORMS = ("rmsnorm", "layernorm")


class Identity(nnx.Module):
  """Stands where a branch has no norm, because its combinator normalises after the add."""

  def __call__(self, x: Array) -> Array:
    """Returns x."""
    return x


def norm(
  name: str,
  width: int,
  *,
  eps: float,
  bias: bool,
  dtype: jax.typing.DTypeLike,
  rngs: nnx.Rngs,
) -> nnx.Module:
  """Returns a norm of the last axis with a learned gain, one at init; statistics in float32.

  rmsnorm:    x / sqrt(mean(x²) + eps) ⊙ scale
  layernorm:  (x − mean(x)) / sqrt(var(x) + eps) ⊙ scale (+ bias)

  Args:
    name: `rmsnorm` or `layernorm`.
    width: size of the last axis.
    eps: added to the mean square.
    bias: whether a layernorm has a bias.
    dtype: of the result.
    rngs: required by flax; the initial values are constants.
  """
  common = {"epsilon": eps, "dtype": dtype, "promote_dtype": _as_they_are, "rngs": rngs}
  if name == "rmsnorm":
    return nnx.RMSNorm(width, **common)
  # The fast variance E[x²] − E[x]² cancels badly when the mean is large.
  return nnx.LayerNorm(width, use_bias=bias, use_fast_variance=False, **common)


def _as_they_are(arrays: tuple, **_) -> tuple:
  """Leaves gains in float32, and so the sums over tokens that are their gradients."""
  return arrays
