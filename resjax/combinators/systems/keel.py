"""KEEL: post-norm with a heavy stream, and a norm before every branch, too."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from resjax.base import Array, aligned, wide_dtype
from resjax.combinators.base import Layer, Stream, Views
from resjax.combinators.checks import check_option
from resjax.combinators.numerics import Number, recomputed, rms_normalized
from resjax.combinators.systems.standard import Standard


class Keel(Standard):
  """x ← γ ⊙ RMS(α x + f(N(x))), α = L · sites, N being the norm of the model before a branch.

  In the first layer α is 1, and its first site has no outer norm: x ← x + f(N(x)). The outer norm
  is an RMS norm whatever the `norm` of the model is. A stream that is L · sites times as heavy as
  a branch is said to keep gradients alive through all norms, without the scaled branches of
  `deepnorm`.

  State: x, D values per token. Parameters: L · sites · D, gains one at init; that of the first site
  of the first layer does nothing.

  Args:
    alpha: factor of the stream behind the first layer, at least 0; 0 chooses L · sites.
    eps: added to the mean square of x in the outer norm; > 0.

  Raises:
    ValueError: alpha or eps out of range.

  Source: Post-LayerNorm Is Back, arXiv 2601.19895; the first layer and α as in the code of
    DepthBench, arXiv 2609.32534.
  """

  equals_standard_at_init = False
  per_layer = ("gain",)

  def __init__(self, *, alpha: float = 0.0, eps: float = 1e-6, **options: Any):
    super().__init__(**options)
    check_option("alpha", alpha, 0 <= alpha < float("inf"), "alpha >= 0")
    self.eps = check_option("eps", eps, eps > 0, "eps > 0")
    self.alpha = alpha or float(self.num_sublayers)
    self.gain = nnx.Param(jnp.ones((self.num_layers, len(self.sites), self.d_model)))

  def write(
    self, state: Stream, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> Stream:  # fmt: skip
    first, gain = jnp.asarray(layer) == 0, self._row(self.gain, layer, site)
    alpha = jnp.where(first, 1, jnp.asarray(self.alpha, gain.dtype))
    written = _normed_sum(alpha, self.eps, state, out, gain)
    return jnp.where(first, state + out, written) if site == self.sites[0] else written


@recomputed
def _normed_sum(alpha: Array, eps: Number, x: Array, out: Array, gain: Array) -> Array:
  """Returns γ ⊙ RMS(α x + o), computed in float32 or wider."""
  wide = wide_dtype(x)
  total = alpha * x.astype(wide) + out.astype(wide)
  return (aligned(gain, x) * rms_normalized(total, eps)).astype(x.dtype)
