"""Attenuated residual paths: the stream is multiplied by a constant, or by a learned gate."""

import abc
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from resjax.base import Array, PyTree
from resjax.combinators.base import Layer, Stream, Views
from resjax.combinators.checks import check_choice, check_option
from resjax.combinators.numerics import scaled_add
from resjax.combinators.systems.standard import Standard

SCOPES = ("sublayer", "layer")


class _WithinLayer(NamedTuple):
  """The state between the sites of a layer with scope `layer`; both arrays are [B, T, D].

  Attributes:
    stream: x_in plus the outputs so far, which later sites read.
    attenuated: α x_in plus the outputs so far, which becomes the stream after the layer.
  """

  stream: Array
  attenuated: Array


class AttenuatedStream(Standard):
  """x ← α x + f(x) at every site, or x ← α x + [layer(x) − x] once per layer.

  In the second form a site reads the stream without the factor, plus what earlier sites of its
  layer added.

  Args:
    scope: `sublayer` for a factor at every site, `layer` for one factor per layer.
  """

  def __init__(self, *, scope: str = "sublayer", **options: Any):
    super().__init__(**options)
    self.scope = check_choice("scope", scope, SCOPES)

  def read(self, state: PyTree, layer: Layer, site: str) -> tuple[Views, Any]:
    return {"x": state.stream if isinstance(state, _WithinLayer) else state}, None

  def write(
    self, state: PyTree, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> PyTree:  # fmt: skip
    starts, ends = site == self.sites[0], site == self.sites[-1]
    if self.scope == "sublayer":
      return scaled_add(self._alpha(layer, site, normed), state, out)
    if starts:
      attenuated = scaled_add(self._alpha(layer, site, normed), state, out)
      return attenuated if ends else _WithinLayer(state + out, attenuated)
    attenuated = state.attenuated + out
    return attenuated if ends else _WithinLayer(state.stream + out, attenuated)

  def final_after(self, state: PyTree, layer: Layer, site: str) -> Stream:
    """See `Combinator.final_after`: within a layer it is the attenuated stream."""
    return state.attenuated if isinstance(state, _WithinLayer) else state

  def stream_factor(self, layer: Layer, site: str, normed: Views) -> Float[Array, "..."]:
    """See `Combinator.stream_factor`: with scope `layer` the later sites have the factor 1."""
    if self.scope == "layer" and site != self.sites[0]:
      return jnp.ones(())
    return self._alpha(layer, site, normed)

  @abc.abstractmethod
  def _alpha(self, layer: Layer, site: str, normed: Views | None) -> Array:
    """Returns α, which broadcasts against [B, T, D]; with scope `layer` that of the first site."""


class Attenuation(AttenuatedStream):
  """x ← α[layer, site] x + f(x), with constant α: the residual path is cut.

  α is `alpha` at the chosen layers and sites and 1 elsewhere. With scope `sublayer` each site
  attenuates the stream that it adds to, so two sites multiply the input of a layer by alpha² in
  all. With scope `layer` a layer is x ← α[layer] x + [layer(x) − x]: its input is multiplied by
  alpha once, and its later sites see the stream without the cut. The paper's public pages do not
  say which of them it cuts.

  State: x, D values per token. Parameters: none.

  Args:
    layers: layers to cut, 0..L-1; negative ones count from the end. One int is a cut at one layer.
    alpha: factor of the stream at the cut, at least 0; 0 removes it, 1 is `standard`.
    cut_sites: the sites of those layers that cut; () means all, which scope `layer` needs.
    scope: `sublayer` or `layer`.

  Raises:
    ValueError: a layer, site, alpha or scope that does not exist.

  Source: Residual Connections and the Causal Shift, arXiv 2602.14760.
  """

  def __init__(
    self,
    *,
    layers: tuple[int, ...] | int = (-1,),
    alpha: float = 0.5,
    cut_sites: tuple[str, ...] = (),
    **options: Any,
  ):
    super().__init__(**options)
    layers = (layers,) if isinstance(layers, int) else tuple(layers)
    cut_sites = tuple(cut_sites) or self.sites
    for layer in layers:
      in_range = -self.num_layers <= layer < self.num_layers
      allowed = f"{-self.num_layers}..{self.num_layers - 1} for {self.num_layers} layers"
      check_option("layers", layer, in_range, allowed)
    for site in cut_sites:
      check_choice("cut_sites", site, self.sites)
    whole = self.scope == "sublayer" or set(cut_sites) == set(self.sites)
    check_option("cut_sites", cut_sites, whole, f"all of {self.sites} with scope='layer'")
    check_option("alpha", alpha, 0 <= alpha < float("inf"), "alpha >= 0")
    per_layer = self.sites if self.scope == "sublayer" else self.sites[:1]
    factors = np.ones((self.num_layers, len(per_layer)))
    for layer in layers:
      factors[layer, [site in cut_sites for site in per_layer]] = alpha
    self.equals_standard_at_init = bool(np.all(factors == 1))
    self.factors = tuple(map(tuple, factors.tolist()))  # constants, not parameters

  def _alpha(self, layer: Layer, site: str, normed: Views | None) -> Array:
    return jnp.asarray(self.factors)[layer, self.sites.index(site)]
