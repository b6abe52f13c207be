"""Attenuated residual paths: a fixed cut, and a learned gate."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.combinators.base import check_option, scaled_add
from resjax.combinators.standard import Standard


class Attenuation(Standard):
  """x ← α[layer, site] x + f(x), with constant α: a cut of the residual path.

  α is `alpha` at the chosen layers and sites and 1 elsewhere. Each site attenuates the stream
  that it adds to, so with two sites a layer multiplies its input by alpha² in all.

  Stores x, D values per token. Parameters: none. FLOPs: 2 D per site and token.

  Args:
    layers: layers to cut, 0..L-1; negative ones count from the end. One int is a cut at one layer.
    alpha: factor of the stream at the cut, at least 0; 0 removes it, 1 is `standard`.
    cut_sites: the sites of those layers that cut; None is all.

  Raises:
    ValueError: a layer, site or alpha that does not exist.

  Source: Residual Connections and the Causal Shift, arXiv 2602.14760.
  """

  def __init__(
    self,
    *,
    layers: tuple[int, ...] | int = (-1,),
    alpha: float = 0.5,
    cut_sites: tuple[str, ...] | None = None,
    rngs: nnx.Rngs | None = None,
    **sizes,
  ):
    super().__init__(**sizes)
    layers = (layers,) if isinstance(layers, int) else tuple(layers)
    cut_sites = self.sites if cut_sites is None else tuple(cut_sites)
    for layer in layers:
      in_range = -self.num_layers <= layer < self.num_layers
      allowed = f"{-self.num_layers}..{self.num_layers - 1} for {self.num_layers} layers"
      check_option("layers", layer, in_range, allowed)
    for site in cut_sites:
      check_option("cut_sites", site, site in self.sites, f"{', '.join(self.sites)}")
    check_option("alpha", alpha, 0 <= alpha < float("inf"), "alpha >= 0")
    factors = np.ones((self.num_layers, len(self.sites)))
    for layer in layers:
      for site in cut_sites:
        factors[layer, self.sites.index(site)] = alpha
    self.equals_standard_at_init = bool(np.all(factors == 1))
    self.factors = tuple(map(tuple, factors.tolist()))  # static: not a parameter

  def write(self, state, layer, site, out, *, normed=None, tape=None):
    """See `Combinator.write`."""
    factors = jnp.asarray(self.factors)
    return scaled_add(factors[layer, self.sites.index(site)], state, out)

  def flops_per_token(self):
    """2 L · sites · D."""
    return 2 * self.num_sublayers * self.d_model


class Gate(Standard):
  """x ← α x + f(x), with a learned α per layer, depth mixture, token or channel.

  `layer`          α = 2 σ(a),                       a: [L, sites], init 0
  `depth_mixture`  α = 1 − κ (softmax(a)[layer] − 1/L),  a: [L], init 0; both sites share it
  `token`          α = 2 σ(w · n + b),               w: [L, sites, D], b: [L, sites], init 0
  `channel`        α = 2 σ(w ⊙ n + b),               w, b: [L, sites, D], init 0

  n is the normalised input of the branch. α is exactly 1 at init, so a fresh gate is `standard`,
  and lies in (0, 2): it can attenuate the stream or keep it longer. In `depth_mixture` the layers
  compete for one unit of attenuation, which can concentrate on a single layer.
  The paper publishes no parametrisation; these are ours.

  Stores x, D values per token. FLOPs per site and token: 2 D (layer, depth_mixture),
  4 D (token), 5 D (channel).

  Args:
    granularity: `layer`, `depth_mixture`, `token` or `channel`.
    kappa: κ of `depth_mixture`, in (0, 1].

  Raises:
    ValueError: granularity or kappa out of range.

  Source: Residual Connections and the Causal Shift, arXiv 2602.14760.
  """

  def __init__(
    self,
    *,
    granularity: str = "layer",
    kappa: float = 1.0,
    rngs: nnx.Rngs | None = None,
    **sizes,
  ):
    super().__init__(**sizes)
    allowed = ("layer", "depth_mixture", "token", "channel")
    check_option("granularity", granularity, granularity in allowed, ", ".join(allowed))
    check_option("kappa", kappa, 0 < kappa <= 1, "0 < kappa <= 1")
    self.granularity = granularity
    self.kappa = kappa
    per_site = (self.num_layers, len(self.sites))
    if granularity == "depth_mixture":
      self.bias = nnx.Param(jnp.zeros(self.num_layers))  # every layer needs the whole softmax
      return
    self.per_layer = ("bias",)
    self.bias = nnx.Param(
      jnp.zeros((*per_site, self.d_model) if granularity == "channel" else per_site)
    )
    if granularity in ("token", "channel"):
      self.weight = nnx.Param(jnp.zeros((*per_site, self.d_model)))
      self.per_layer += ("weight",)

  def write(self, state, layer, site, out, *, normed=None, tape=None):
    """See `Combinator.write`; granularity `token` and `channel` need `normed`."""
    return scaled_add(self._alpha(layer, site, normed), state, out)

  def _alpha(self, layer, site, normed):
    if self.granularity == "depth_mixture":
      share = jax.nn.softmax(self.bias[...])[layer]
      return 1.0 - self.kappa * (share - 1.0 / self.num_layers)
    logit = self._row(self.bias, layer, site)
    if self.granularity in ("token", "channel"):
      if normed is None:
        raise ValueError(f"granularity={self.granularity!r} needs write(..., normed=views)")
      gated = self._row(self.weight, layer, site) * normed["x"].astype(logit.dtype)
      per_token = self.granularity == "token"
      logit = logit + (jnp.sum(gated, axis=-1, keepdims=True) if per_token else gated)
    return 2.0 * jax.nn.sigmoid(logit)

  def num_parameters(self):
    """layer: L · sites; depth_mixture: L; token: L · sites (D + 1); channel: 2 L · sites · D."""
    sublayers = self.num_sublayers
    return {
      "layer": sublayers,
      "depth_mixture": self.num_layers,
      "token": sublayers * (self.d_model + 1),
      "channel": 2 * sublayers * self.d_model,
    }[self.granularity]

  def flops_per_token(self):
    """L · sites · D times 2, 2, 4, 5."""
    per_value = {"layer": 2, "depth_mixture": 2, "token": 4, "channel": 5}[self.granularity]
    return per_value * self.num_sublayers * self.d_model
