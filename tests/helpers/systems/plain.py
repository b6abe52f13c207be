"""The plain add, and attenuated residual paths."""

import numpy as np

from tests.helpers.systems.common import Case, num_layers, sigmoid, sublayers


def standard(params, weights, x, sites):
  for _, _, run in sublayers(weights, sites):
    x = x + run(x)[1]
  return x


def attenuation(params, weights, x, sites, *, layers, alpha, cut_sites=None):
  depth = num_layers(weights, sites)
  layers = [layers] if isinstance(layers, int) else layers
  cut = {layer % depth for layer in layers}
  for layer, index, run in sublayers(weights, sites):
    attenuated = layer in cut and sites[index] in (cut_sites or sites)
    x = (alpha if attenuated else 1.0) * x + run(x)[1]
  return x


def gate(params, weights, x, sites, *, granularity, kappa=1.0):
  depth = num_layers(weights, sites)
  a = params["bias"]
  for layer, index, run in sublayers(weights, sites):
    normed, out = run(x)
    n = normed["x"]
    if granularity == "layer":
      alpha = 2 * sigmoid(a[layer, index])
    elif granularity == "depth_mixture":
      alpha = 1 - kappa * (np.exp(a[layer]) / np.sum(np.exp(a)) - 1 / depth)
    elif granularity == "token":
      w = params["weight"][layer, index]
      alpha = 2 * sigmoid(np.einsum("d,btd->bt", w, n) + a[layer, index])[:, :, None]
    else:
      alpha = 2 * sigmoid(params["weight"][layer, index] * n + a[layer, index])
    x = alpha * x + out
  return x


EQUATIONS = {"standard": standard, "attenuation": attenuation, "gate": gate}

CASES = (
  Case("standard", standard_at_init=True),
  Case("attenuation", {"layers": -1, "alpha": 0.7}),
  Case("attenuation", {"layers": (0, 3), "alpha": 0.0, "cut_sites": ("mlp",)}),
  Case("attenuation", {"layers": 1, "alpha": 1.0}, standard_at_init=True),
  *(
    Case("gate", options, standard_at_init=True, learns_at_init=learns)
    for options, learns in (
      ({"granularity": "layer"}, ("bias",)),
      ({"granularity": "depth_mixture"}, ("bias",)),
      ({"granularity": "depth_mixture", "kappa": 0.5}, ("bias",)),
      ({"granularity": "token"}, ("weight", "bias")),
      ({"granularity": "channel"}, ("weight", "bias")),
    )
  ),
)

FLOPS = {  # L = 2, D = 3, two sites
  ("standard",): 4 * 3,
  ("attenuation",): 4 * 6,
  ("gate", ("granularity", "layer")): 4 * 6,
  ("gate", ("granularity", "depth_mixture")): 4 * 6,
  ("gate", ("granularity", "token")): 4 * 12,
  ("gate", ("granularity", "channel")): 4 * 15,
}

BAD_OPTIONS = (  # for 3 layers
  ("standard", {"alpha": 1.0}, ["'alpha'", "'standard'", "allowed: none"]),
  ("attenuation", {"layers": 3}, ["layers=3", "-3..2"]),
  ("attenuation", {"layers": (0, -4)}, ["layers=-4", "-3..2"]),
  ("attenuation", {"alpha": -0.5}, ["alpha=-0.5", "alpha >= 0"]),
  ("attenuation", {"alpha": float("nan")}, ["alpha=nan", "alpha >= 0"]),
  ("attenuation", {"cut_sites": ("atention",)}, ["'atention'", "attention, mlp"]),
  ("gate", {"granularity": "head"}, ["'head'", "layer, depth_mixture, token, channel"]),
  ("gate", {"kappa": 0.0}, ["kappa=0.0", "0 < kappa <= 1"]),
  ("gate", {"kappa": 1.5}, ["kappa=1.5", "0 < kappa <= 1"]),
)
