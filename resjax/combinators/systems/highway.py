"""Highway networks: a gate that weighs the stream against the branch."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from resjax.base import Array, aligned, wide_dtype
from resjax.combinators.base import Layer, Stream, Views
from resjax.combinators.checks import check_choice, check_option
from resjax.combinators.numerics import project, recomputed
from resjax.combinators.systems.standard import Standard

GRANULARITIES = ("token", "channel")


class Highway(Standard):
  """x ← (1 − g) ⊙ x + g ⊙ f(x), with g = σ(W x + b) in (0, 1): a carry and a transform gate.

  `token`    g is one number per token,   W: [D],     b: one number, per site
  `channel`  g is one number per channel, W: [D, D],  b: [D],        per site; the paper's form

  The gate reads the stream itself, not its norm. `token` has 1/D of the parameters of `channel`.

  State: x, D values per token. Parameters: L · sites (D + 1) (token), L · sites (D² + D) (channel);
  W starts at zero, so that at first b alone decides (the paper draws W), b at `bias_init`, which
  must be negative: at first mostly the stream passes. W of `channel` takes weight decay.

  Args:
    granularity: `token` or `channel`.
    bias_init: initial b, below 0; the paper uses -1 to -10, deeper networks the lower values.

  Raises:
    ValueError: granularity or bias_init out of range.

  Source: Highway Networks, arXiv 1505.00387.
  """

  family = "gates"
  equals_standard_at_init = False
  per_layer = ("weight", "bias")

  def __init__(self, *, granularity: str = "channel", bias_init: float = -2.0, **options: Any):
    super().__init__(**options)
    self.granularity = check_choice("granularity", granularity, GRANULARITIES)
    check_option("bias_init", bias_init, float("-inf") < bias_init < 0, "bias_init < 0")
    width = self.d_model if granularity == "channel" else 1
    if granularity == "channel":
      self.decayed_parameters = ("weight",)
    per_site = (self.num_layers, len(self.sites))
    self.weight = nnx.Param(jnp.zeros((*per_site, self.d_model, width)), axes=("embed_param", None))
    self.bias = nnx.Param(jnp.full((*per_site, width), bias_init))

  def write(
    self, state: Stream, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> Stream:  # fmt: skip
    return _gated(state, out, *(self._row(p, layer, site) for p in (self.weight, self.bias)))


@recomputed
def _gated(x: Array, out: Array, weight: Array, bias: Array) -> Array:
  """Returns (1 − g) x + g o with g = σ(x W + b), computed in float32 or wider."""
  wide = wide_dtype(x)
  stream = x.astype(wide)
  gate = jax.nn.sigmoid(project("...d,dg->...g", stream, weight) + aligned(bias, stream))
  return (stream + gate * (out.astype(wide) - stream)).astype(x.dtype)
