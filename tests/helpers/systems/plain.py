"""The plain add, and attenuated residual paths."""

import numpy as np

from tests.helpers.systems.common import Case, Costs, D, num_layers, sigmoid, sublayers


def standard(params, weights, x, sites):
  for _, _, run in sublayers(weights, sites):
    x = x + run(x)[1]
  return x


def attenuation(params, weights, x, sites, *, layers, alpha, cut_sites=None, scope="sublayer"):
  depth = num_layers(weights, sites)
  layers = [layers] if isinstance(layers, int) else layers
  cut = {layer % depth for layer in layers}

  def factor(layer, index, normed):
    attenuated = layer in cut and sites[index] in (cut_sites or sites)
    return alpha if attenuated else 1.0

  return attenuated_stream(weights, x, sites, scope, factor)


def attenuated_stream(weights, x, sites, scope, factor):
  """Per sublayer: x <- alpha x + f(x); per layer: x <- alpha x + (layer(x) - x)."""
  for layer, index, run in sublayers(weights, sites):
    if scope == "sublayer":
      normed, out = run(x)
      x = factor(layer, index, normed["x"]) * x + out
      continue
    if index == 0:
      layer_input = x
    normed, out = run(x)
    if index == 0:
      alpha = factor(layer, index, normed["x"])
    x = x + out  # plain sublayers
    if index == len(sites) - 1:
      x = alpha * layer_input + (x - layer_input)
  return x


def gate(params, weights, x, sites, *, granularity, kappa=1.0, scope="sublayer"):
  depth = num_layers(weights, sites)
  a = params["bias"]

  def factor(layer, index, n):
    if granularity == "depth_mixture":
      return 1 - kappa * (np.exp(a[layer]) / np.sum(np.exp(a)) - 1 / depth)
    if granularity == "layer":
      return 2 * sigmoid(a[layer, index])
    w = params["weight"][layer, index]
    if granularity == "token":
      return 2 * sigmoid(np.einsum("d,btd->bt", w, n) + a[layer, index])[:, :, None]
    return 2 * sigmoid(w * n + a[layer, index])

  return attenuated_stream(weights, x, sites, scope, factor)


EQUATIONS = {"standard": standard, "attenuation": attenuation, "gate": gate}

CASES = (
  Case("standard", standard_at_init=True),
  Case("attenuation", {"layers": -1, "alpha": 0.7}),
  Case("attenuation", {"layers": (0, 2), "alpha": 0.0, "cut_sites": ("mlp",)}),
  Case("attenuation", {"layers": 1, "alpha": 1.0}, standard_at_init=True),
  Case("attenuation", {"layers": (1, -1), "alpha": 0.4, "scope": "layer"}),
  *(
    Case("gate", options, standard_at_init=True, learns_at_init=learns)
    for options, learns in (
      ({"granularity": "layer"}, ("bias",)),
      ({"granularity": "depth_mixture"}, ("bias",)),
      ({"granularity": "depth_mixture", "kappa": 0.5}, ("bias",)),
      ({"granularity": "token"}, ("weight", "bias")),
      ({"granularity": "channel"}, ("weight", "bias")),
      ({"granularity": "layer", "scope": "layer"}, ("bias",)),
      ({"granularity": "depth_mixture", "scope": "layer"}, ("bias",)),
      ({"granularity": "token", "scope": "layer"}, ("weight", "bias")),
      ({"granularity": "channel", "scope": "layer"}, ("weight", "bias")),
    )
  ),
)

COSTS = {  # L = 2, two sites
  ("standard",): Costs(0, D, 4 * D),
  ("attenuation",): Costs(0, D, 4 * 2 * D),
  ("attenuation", ("scope", "layer")): Costs(0, D, 2 * (2 + 1 + 1) * D),  # first site: two sums
  ("gate", ("granularity", "layer")): Costs(4, D, 4 * 2 * D),
  ("gate", ("granularity", "depth_mixture")): Costs(2, D, 4 * 2 * D),
  ("gate", ("granularity", "token")): Costs(4 * (D + 1), D, 4 * (2 + 2) * D),
  ("gate", ("granularity", "channel")): Costs(4 * 2 * D, D, 4 * (3 + 2) * D),
  ("gate", ("granularity", "layer"), ("scope", "layer")): Costs(2, D, 2 * 4 * D),
  ("gate", ("granularity", "token"), ("scope", "layer")): Costs(2 * (D + 1), D, 2 * (2 + 4) * D),
  ("gate", ("granularity", "channel"), ("scope", "layer")): Costs(2 * 2 * D, D, 2 * (3 + 4) * D),
}

BAD_OPTIONS = (  # for 3 layers
  ("standard", {"alpha": 1.0}, ["'alpha'", "'standard'", "allowed: none"]),
  ("attenuation", {"layers": 3}, ["layers=3", "-3..2"]),
  ("attenuation", {"layers": (0, -4)}, ["layers=-4", "-3..2"]),
  ("attenuation", {"alpha": -0.5}, ["alpha=-0.5", "alpha >= 0"]),
  ("attenuation", {"alpha": float("nan")}, ["alpha=nan", "alpha >= 0"]),
  ("attenuation", {"cut_sites": ("atention",)}, ["'atention'", "attention, mlp"]),
  ("attenuation", {"scope": "block"}, ["scope='block'", "sublayer, layer"]),
  (
    "attenuation",
    {"scope": "layer", "cut_sites": ("mlp",)},
    ["cut_sites=('mlp',)", "all of", "scope='layer'"],
  ),
  ("gate", {"scope": "site"}, ["scope='site'", "sublayer, layer"]),
  ("gate", {"granularity": "head"}, ["'head'", "layer, depth_mixture, token, channel"]),
  ("gate", {"kappa": 0.0}, ["kappa=0.0", "0 < kappa <= 1"]),
  ("gate", {"kappa": 1.5}, ["kappa=1.5", "0 < kappa <= 1"]),
)
