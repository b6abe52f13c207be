"""LayerScale: every channel of a branch has a learned scale that starts small."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from resjax.base import Array
from resjax.combinators.base import Layer
from resjax.combinators.checks import check_option
from resjax.combinators.systems.rezero import ScaledBranch


class LayerScale(ScaledBranch):
  """x ← x + λ ⊙ f(norm(x)), with a learned λ [D] per site that starts small.

  State: x, D values per token. Parameters: L · sites · D, all `init_value` at init.

  Args:
    init_value: of λ, at least 0; 0 chooses it by depth as the paper does: 0.1 up to 18 layers, 1e-5
      up to 24, 1e-6 beyond.

  Raises:
    ValueError: init_value out of range.

  Source: Going deeper with Image Transformers (CaiT), arXiv 2103.17239.
  """

  per_layer = ("scale",)

  def __init__(self, *, init_value: float = 0.0, **options: Any):
    super().__init__(**options)
    check_option("init_value", init_value, 0 <= init_value < float("inf"), "init_value >= 0")
    per_site = (self.num_layers, len(self.sites), self.d_model)
    self.scale = nnx.Param(jnp.full(per_site, init_value or _by_depth(self.num_layers)))

  def _scale(self, layer: Layer, site: str) -> Array:
    return self._row(self.scale, layer, site)


def _by_depth(num_layers: int) -> float:
  if num_layers <= 18:
    return 0.1
  return 1e-5 if num_layers <= 24 else 1e-6
