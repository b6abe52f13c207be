"""LayerNorm Scaling: norms before branches whose output shrinks with depth."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from resjax.base import Array
from resjax.combinators.base import Layer, Stream, Views
from resjax.combinators.checks import check_option
from resjax.combinators.numerics import scaled_norm
from resjax.combinators.systems.standard import Standard


class LNS(Standard):
  """x ← x + f(γ ⊙ RMS(x) / √ℓ), where ℓ = 1..L counts layers; all sites of a layer share it.

  The factor stands behind the gain, so the norm before a branch is part of the system, an RMS norm
  with a gain γ [D] per site, and takes the place of the model's (`pre_norm` is False), whatever
  its `norm` is. The final norm is the model's and has no factor. The first layer is that of
  `standard`; later branches start from smaller inputs, so the stream grows more slowly with depth.
  It is known for a larger best learning rate: DepthBench (arXiv 2609.32534) tuned 1e-2 for it and
  2e-3 for pre-norm.

  State: x, D values per token. Parameters: L · sites · D, gains one at init; the model has as many
  fewer.

  Args:
    eps: added to the mean square of x in the norm; > 0.

  Raises:
    ValueError: eps out of range.

  Source: The Curse of Depth in Large Language Models, arXiv 2502.05795.
  """

  pre_norm = False
  equals_standard_at_init = False
  equals_standard_from_norms = True
  per_layer = ("gain",)

  def __init__(self, *, eps: float = 1e-6, **options: Any):
    super().__init__(**options)
    self.eps = check_option("eps", eps, eps > 0, "eps > 0")
    self.gain = nnx.Param(jnp.ones((self.num_layers, len(self.sites), self.d_model)))

  def read(self, state: Stream, layer: Layer, site: str) -> tuple[Views, Any]:
    gain = self._row(self.gain, layer, site) / jnp.sqrt(jnp.asarray(layer + 1, self.gain.dtype))
    return {"x": scaled_norm(state, gain, self.eps)}, None

  def from_norms(self, gains: Mapping[str, Float[Array, "..."]]) -> dict[str, Float[Array, "..."]]:
    """See `Combinator.from_norms`: a gain takes the √ℓ that its read takes away."""
    plain = jnp.ones((self.num_layers, self.d_model))
    sites = jnp.stack([gains.get(site, plain) for site in self.sites], axis=1)
    return {"gain": sites * jnp.sqrt(jnp.arange(1.0, self.num_layers + 1))[:, None, None]}
