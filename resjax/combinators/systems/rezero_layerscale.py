"""Branches with a learned scale: one number, or one per channel."""

import abc
from typing import Any

import jax.numpy as jnp
from flax import nnx

from resjax.base import Array
from resjax.combinators.base import Layer, Views, check_flag, check_option
from resjax.combinators.numerics import scaled_add
from resjax.combinators.systems.standard import Standard


class _ScaledBranch(Standard):
  """x ← x + s ⊙ f(x), where a subclass gives s."""

  equals_standard_at_init = False

  def write(
    self, state: Array, layer: Layer, site: str, out: Array, *,
    normed: Views | None = None, tape: Any = None,
  ) -> Array:  # fmt: skip
    return scaled_add(self._scale(layer, site), out, state)

  @abc.abstractmethod
  def _scale(self, layer: Layer, site: str) -> Array:
    """Returns s, one number or [D]."""


class ReZero(_ScaledBranch):
  """x ← x + α f(x), with a learned number α that starts at 0: the identity map at init.

  In the paper the sublayers of a layer share one α, and the network has no norms but the final one.
  SkipInit (arXiv 2002.10444) is the same equation with one α per branch.

  State: x, D values per token. Parameters: L (`layer`) or L · sites (`sublayer`), init 0.

  Args:
    granularity: `layer` (one α for all sites of a layer) or `sublayer` (one per site).
    pre_norm: whether branches normalise what they read; the paper's do not.

  Raises:
    ValueError: granularity or pre_norm out of range.

  Source: ReZero is All You Need, arXiv 2003.04887.
  """

  per_layer = ("alpha",)

  def __init__(self, *, granularity: str = "layer", pre_norm: bool = False, **options: Any):
    super().__init__(**options)
    known = granularity in ("layer", "sublayer")
    check_option("granularity", granularity, known, "layer, sublayer")
    check_flag("pre_norm", pre_norm)
    self.granularity = granularity
    self.pre_norm = pre_norm
    per_site = (len(self.sites),) if granularity == "sublayer" else ()
    self.alpha = nnx.Param(jnp.zeros((self.num_layers, *per_site)))

  def _scale(self, layer: Layer, site: str) -> Array:
    alpha = self._layer_row(self.alpha, layer)
    return alpha[self.sites.index(site)] if self.granularity == "sublayer" else alpha


class LayerScale(_ScaledBranch):
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
