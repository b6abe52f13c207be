"""DeepNorm: post-norm with a heavier stream and lighter branches."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from resjax.base import Array, aligned, wide_dtype
from resjax.combinators.base import Layer, Stream, TokenContext, Views
from resjax.combinators.checks import check_option
from resjax.combinators.numerics import Number, recomputed, standardized
from resjax.combinators.systems.standard import Standard


class DeepNorm(Standard):
  """x ← LN(α x + f(x)), α = n^{1/4}, branch kernels scaled by (4 n)^{-1/4} at init; n = L · sites.

  With two sites these are the paper's constants for decoders, α = (2L)^{1/4} and β = (8L)^{-1/4}.
  They come from a sum over all sublayers, hence n here. Branches read x as it is (`pre_norm` is
  False), LN has a gain and a bias per site, and β scales the value, output and MLP kernels of the
  decoder (`branch_init_gain`) but not queries and keys. The paper has no other scaling of outputs:
  config.model.scaled_output_init=False is its initialisation.

  State: x, D values per token. Parameters: 2 L · sites · D, gains one and biases zero at init.

  Args:
    alpha: factor of the stream, at least 0; 0 chooses (L · sites)^{1/4}.
    eps: added to the variance in LN; > 0.

  Raises:
    ValueError: alpha or eps out of range.

  Source: DeepNet, arXiv 2203.00555.
  """

  pre_norm = False
  equals_standard_at_init = False
  per_layer = ("norm_scale", "norm_bias")

  def __init__(self, *, alpha: float = 0.0, eps: float = 1e-5, **options: Any):
    super().__init__(**options)
    check_option("alpha", alpha, 0 <= alpha < float("inf"), "alpha >= 0")
    self.eps = check_option("eps", eps, eps > 0, "eps > 0")
    self.alpha = alpha or self.num_sublayers**0.25
    self.branch_init_gain = (4 * self.num_sublayers) ** -0.25
    per_site = (self.num_layers, len(self.sites), self.d_model)
    self.norm_scale = nnx.Param(jnp.ones(per_site))
    self.norm_bias = nnx.Param(jnp.zeros(per_site))

  def init(self, x: Stream, tokens: TokenContext | None = None) -> Stream:
    """See `Combinator.init`.

    Raises:
      ValueError: the model does not say that it scales its branches.
    """
    self.check_scaled_init()
    return super().init(x, tokens)

  def write(
    self, state: Stream, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> Stream:  # fmt: skip
    gain, bias = (self._row(p, layer, site) for p in (self.norm_scale, self.norm_bias))
    return _normed_sum(jnp.asarray(self.alpha), self.eps, state, out, gain, bias)


@recomputed
def _normed_sum(alpha: Array, eps: Number, x: Array, out: Array, gain: Array, bias: Array) -> Array:
  """Returns LN(α x + o), computed in float32 or wider."""
  wide = wide_dtype(x)
  total = alpha * x.astype(wide) + out.astype(wide)
  return (standardized(total, eps) * aligned(gain, x) + aligned(bias, x)).astype(x.dtype)
