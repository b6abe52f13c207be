"""Norms over the last axis, the model width D or the head width C."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Float

from resjax.base import Array, promoting, wide_dtype
from resjax.base.sharding import Layout
from resjax.nn.linear import Keys, Linear

NORMS = ("rmsnorm", "layernorm")
NORM_GATES = ("neutral", "published")


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
    return promoting(super().__call__)(x, mask=mask)


class LayerNorm(nnx.LayerNorm):
  """The norm of Flax under a name that compiled programs keep."""

  @jax.named_scope("norm")
  def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
    """Returns (x − mean(x)) / sqrt(var(x) + eps) ⊙ scale (+ bias)."""
    return promoting(super().__call__)(x, mask=mask)


Norm = nnx.RMSNorm | nnx.LayerNorm | Identity


def make_norm(
  name: str, width: int, *, eps: float, bias: bool, dtype: jax.typing.DTypeLike, rngs: nnx.Rngs
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


class NormGate(nnx.Module):
  """GatedNorm: y ← c y ⊙ σ(W_up silu(W_down y)) of a normalised y, a gate of low rank r.

  It may follow any norm, one that a combinator has fused into its read included.

  When to use it: against activations with outliers, in low precision. The paper reports a loss of
  1.951 with it and 1.957 without (2B parameters, 120B tokens, gated attention, MLPs narrower by as
  many parameters); against it, 5 % more time there, and a loss that was much higher in one public
  trial at 13M parameters.

  Args:
    form: `neutral`: c = 2 and W_up starts at zero, so that y passes; `published`: c = 1 and W_up is
      drawn, so that about half of y passes.
    width: D.
    rank: r; the paper has 16.
    std: the standard deviation of matrices at init.
    dtype: the dtype of the activations.
    layout: the mesh and sharding rules of the activations.
    rngs: the source of the initial values.

  Source: arXiv 2601.22966, section 3.4; it gates every norm, resjax those before branches.
  """

  def __init__(
    self, form: str, width: int, rank: int, *,
    std: float, dtype: jax.typing.DTypeLike, layout: Layout, rngs: nnx.Rngs,
  ):  # fmt: skip
    neutral = form == "neutral"
    self.scale, keys = 2.0 if neutral else 1.0, Keys(rngs)
    common: dict[str, Any] = {"bias": False, "dtype": dtype, "layout": layout}
    down, up = ("embed_param", None), (None, "embed_param")
    self.down = Linear(width, rank, down, std=std, rngs=keys("down"), **common)
    self.up = Linear(rank, width, up, std=0.0 if neutral else std, rngs=keys("up"), **common)

  @jax.named_scope("norm")
  def __call__(self, y: Float[Array, "*tokens D"]) -> Float[Array, "*tokens D"]:
    """Returns the gated y."""
    gate = jax.nn.sigmoid(self.up(jax.nn.silu(self.down(y))).astype(wide_dtype(y)))
    return (self.scale * gate * y.astype(gate.dtype)).astype(y.dtype)


def _as_they_are(arrays: tuple, **_: Any) -> tuple:
  """Keeps gains in float32, and with them their gradients, which are sums over all tokens."""
  return arrays
