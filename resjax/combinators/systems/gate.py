"""A learned gate on the residual path."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from resjax.base import Array, aligned
from resjax.combinators.base import Layer, Views
from resjax.combinators.checks import check_choice, check_option
from resjax.combinators.numerics import recomputed
from resjax.combinators.systems.attenuation import AttenuatedStream

GRANULARITIES = ("layer", "depth_mixture", "token", "channel")


class Gate(AttenuatedStream):
  """x ← α x + f(x), with a learned α per layer, depth mixture, token or channel.

  `layer`          α = 2 σ(a),                       a: [L, G], init 0
  `depth_mixture`  α = 1 − κ (softmax(a)[layer] − 1/L),  a: [L], init 0; all sites share it
  `token`          α = 2 σ(w · n + b),               w: [L, G, D], b: [L, G], init 0
  `channel`        α = 2 σ(w ⊙ n + b),               w, b: [L, G, D], init 0

  n is the normalised input of the branch. With scope `sublayer` every site has a gate, so that G is
  the number of sites. With scope `layer` there is one gate, G = 1, for x ← α x + [layer(x) − x]: n
  is the input of the first site, and later sites see the stream without the gate.

  α is exactly 1 at init, so a fresh gate is `standard`, and lies in (0, 2): it can attenuate the
  stream or keep it longer. In `depth_mixture` the layers compete for one unit of attenuation,
  which can concentrate on a single layer.
  The paper publishes no parametrisation; these are our own.

  State: x, D values per token.

  Args:
    granularity: `layer`, `depth_mixture`, `token` or `channel`.
    kappa: κ of `depth_mixture`, in (0, 1].
    scope: `sublayer` or `layer`.

  Raises:
    ValueError: granularity, kappa or scope out of range.

  Source: Residual Connections and the Causal Shift, arXiv 2602.14760.
  """

  family = "gates"

  def __init__(self, *, granularity: str = "layer", kappa: float = 1.0, **options: Any):
    super().__init__(**options)
    self.granularity = check_choice("granularity", granularity, GRANULARITIES)
    self.kappa = check_option("kappa", kappa, 0 < kappa <= 1, "0 < kappa <= 1")
    if granularity == "depth_mixture":
      self.bias = nnx.Param(jnp.zeros(self.num_layers))  # not per layer: the softmax needs all
      return
    per_gate = (self.num_layers, self._gates_per_layer)
    self.per_layer = ("bias",)
    self.bias = nnx.Param(
      jnp.zeros((*per_gate, self.d_model) if granularity == "channel" else per_gate)
    )
    if granularity in ("token", "channel"):
      self.weight = nnx.Param(jnp.zeros((*per_gate, self.d_model)))
      self.per_layer += ("weight",)

  @property
  def _gates_per_layer(self) -> int:
    return len(self.sites) if self.scope == "sublayer" else 1

  def _alpha(self, layer: Layer, site: str, normed: Views | None) -> Array:
    if self.granularity == "depth_mixture":
      share = jax.nn.softmax(self.bias[...])[layer]
      return 1.0 - self.kappa * (share - 1.0 / self.num_layers)
    bias = self._row(self.bias, layer, site)
    if self.granularity == "layer":
      return 2.0 * jax.nn.sigmoid(bias)
    if normed is None:
      raise ValueError(f"granularity={self.granularity!r} needs write(..., normed=views)")
    of_input = _of_token if self.granularity == "token" else _of_channel
    return of_input(normed["x"], self._row(self.weight, layer, site), bias)


@recomputed
def _of_token(x: Array, weight: Array, bias: Array) -> Array:
  """Returns 2 σ(w · x + b) [..., 1]."""
  products = aligned(weight, x) * x.astype(bias.dtype)
  return 2.0 * jax.nn.sigmoid(jnp.sum(products, axis=-1, keepdims=True) + aligned(bias, x))


@recomputed
def _of_channel(x: Array, weight: Array, bias: Array) -> Array:
  """Returns 2 σ(w ⊙ x + b) [..., D]."""
  weight, bias = aligned(weight, x), aligned(bias, x)
  return 2.0 * jax.nn.sigmoid(weight * x.astype(bias.dtype) + bias)
