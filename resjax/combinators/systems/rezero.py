"""ReZero: every branch has a learned weight that starts at zero."""

import abc
from typing import Any

import jax.numpy as jnp
from flax import nnx

from resjax.base import Array
from resjax.combinators.base import Layer, Stream, Views
from resjax.combinators.checks import check_choice, check_flag
from resjax.combinators.numerics import scaled_add
from resjax.combinators.systems.standard import Standard


class ScaledBranch(Standard):
  """x ← x + s ⊙ f(x), where a subclass gives s."""

  equals_standard_at_init = False

  def write(
    self, state: Stream, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> Stream:  # fmt: skip
    return scaled_add(self._scale(layer, site), out, state)

  @abc.abstractmethod
  def _scale(self, layer: Layer, site: str) -> Array:
    """Returns s, one number or [D]."""


class ReZero(ScaledBranch):
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
    self.granularity = check_choice("granularity", granularity, ("layer", "sublayer"))
    self.pre_norm = check_flag("pre_norm", pre_norm)
    per_site = (len(self.sites),) if granularity == "sublayer" else ()
    self.alpha = nnx.Param(jnp.zeros((self.num_layers, *per_site)))

  def _scale(self, layer: Layer, site: str) -> Array:
    alpha = self._layer_row(self.alpha, layer)
    return alpha[self.sites.index(site)] if self.granularity == "sublayer" else alpha
