"""Norms over the last axis, the model width D or the head width C."""

from typing import Any

import jax
from flax import nnx

from resjax.typing import Array

NORMS = ("rmsnorm", "layernorm")


class Identity(nnx.Module):
  """Takes the place of a norm of which the combinator says that the model needs none there."""

  def __call__(self, x: Array) -> Array:
    """Returns x."""
    return x


class RMSNorm(nnx.RMSNorm):
  """The norm of Flax under a name that compiled programs keep."""

  @jax.named_scope("norm")
  def __call__(self, x: Array, mask: Array | None = None) -> Array:
    """Returns x / sqrt(mean(x²) + eps) ⊙ scale."""
    return super().__call__(x, mask=mask)


class LayerNorm(nnx.LayerNorm):
  """The norm of Flax under a name that compiled programs keep."""

  @jax.named_scope("norm")
  def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
    """Returns (x − mean(x)) / sqrt(var(x) + eps) ⊙ scale (+ bias)."""
    return super().__call__(x, mask=mask)


Norm = nnx.RMSNorm | nnx.LayerNorm | Identity


def norm(
  name: str,
  width: int,
  *,
  eps: float,
  bias: bool,
  dtype: jax.typing.DTypeLike,
  rngs: nnx.Rngs,
) -> Norm:
  """Returns a norm of the last axis with a learned gain, one at init; statistics in float32.

  rmsnorm:    x / sqrt(mean(x²) + eps) ⊙ scale
  layernorm:  (x − mean(x)) / sqrt(var(x) + eps) ⊙ scale (+ bias)

  Args:
    name: `rmsnorm` or `layernorm`.
    width: the size of the last axis.
    eps: the number that is added to the mean square or the variance.
    bias: whether a layernorm has a bias.
    dtype: the dtype of the result.
    rngs: required by flax; the initial values are constants.
  """
  common: dict[str, Any] = {
    "epsilon": eps,
    "dtype": dtype,
    "promote_dtype": _as_they_are,
    "rngs": rngs,
  }
  if name == "rmsnorm":
    return RMSNorm(width, **common)
  # The fast variance E[x²] − E[x]² cancels badly when the mean is large.
  return LayerNorm(width, use_bias=bias, use_fast_variance=False, **common)


def _as_they_are(arrays: tuple, **_: Any) -> tuple:
  """Keeps gains in float32, and with them their gradients, which are sums over all tokens."""
  return arrays
