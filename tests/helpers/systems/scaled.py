"""Scaled, gated and post-norm residuals: ReZero, LayerScale, Highway, DeepNorm, KEEL, LNS."""

import numpy as np

from tests.helpers.reference import rms
from tests.helpers.systems.common import Case, Costs, D, num_layers, sigmoid, sublayers


def rezero(params, weights, x, sites, *, granularity="layer", pre_norm=False):
  for layer, index, run in sublayers(weights, sites, pre_norm):
    alpha = params["alpha"]
    alpha = alpha[layer] if granularity == "layer" else alpha[layer][index]
    x = x + alpha * run(x)[1]
  return x


def layerscale(params, weights, x, sites, *, init_value=0.0):
  for layer, index, run in sublayers(weights, sites):
    x = x + run(x)[1] @ np.diag(params["scale"][layer, index])
  return x


def highway(params, weights, x, sites, *, granularity="channel", bias_init=-2.0):
  for layer, index, run in sublayers(weights, sites):
    transform = sigmoid(x @ params["weight"][layer, index] + params["bias"][layer, index])
    carry = 1 - transform
    x = carry * x + transform * run(x)[1]
  return x


def deepnorm(params, weights, x, sites, *, alpha=0.0, eps=1e-5):
  """Table 2 (decoder-only), 2L being the number of sublayers."""
  if alpha == 0:
    alpha = np.sqrt(np.sqrt(num_layers(weights, sites) * len(sites)))
  for layer, index, run in sublayers(weights, sites, pre_norm=False):
    y = alpha * x + run(x)[1]
    mean = np.mean(y, axis=-1, keepdims=True)
    z = (y - mean) / np.sqrt(np.var(y, axis=-1, keepdims=True) + eps)
    x = params["norm_scale"][layer, index] * z + params["norm_bias"][layer, index]
  return x


def keel(params, weights, x, sites, *, alpha=0.0, eps=1e-6):
  """LN(alpha x + F(LN(x))), alpha = 2L; layer 1: x + Attn(LN(x)), then LN(x + FFN(LN(x)))."""
  alpha = alpha or num_layers(weights, sites) * len(sites)
  for layer, index, run in sublayers(weights, sites):
    y = x * (1 if layer == 0 else alpha) + run(x)[1]
    x = y if (layer, index) == (0, 0) else rms(y, eps) * params["gain"][layer, index]
  return x


def lns(params, weights, x, sites, *, eps=1e-6):
  """h = LayerNorm(x) / sqrt(l) for both sublayers of layer l = 1, 2, ..."""
  for layer, index, run in sublayers(weights, sites, pre_norm=False):
    h = np.power(layer + 1, -0.5) * (rms(x, eps) * params["gain"][layer, index])
    x = x + run(h)[1]
  return x


EQUATIONS = {
  "rezero": rezero, "layerscale": layerscale, "highway": highway, "deepnorm": deepnorm,
  "keel": keel, "lns": lns,
}  # fmt: skip

_NO_OUTER_NORM = {"gain": ((0, 0),)}  # the first site of the first layer

CASES = (
  Case("rezero", learns_at_init=("alpha",)),
  Case("rezero", {"granularity": "sublayer", "pre_norm": True}, learns_at_init=("alpha",)),
  Case("layerscale", learns_at_init=("scale",)),
  Case("layerscale", {"init_value": 0.5}, learns_at_init=("scale",)),
  Case("highway", learns_at_init=("weight", "bias")),
  Case("highway", {"granularity": "token", "bias_init": -3.0}, learns_at_init=("weight", "bias")),
  Case("deepnorm", learns_at_init=("norm_scale", "norm_bias")),
  Case("deepnorm", {"alpha": 1.0, "eps": 0.1}, learns_at_init=("norm_scale", "norm_bias")),
  Case("keel", dead=_NO_OUTER_NORM, learns_at_init=("gain",)),
  Case("keel", {"alpha": 1.5, "eps": 0.1}, dead=_NO_OUTER_NORM, learns_at_init=("gain",)),
  Case("lns", learns_at_init=("gain",)),
  Case("lns", {"eps": 0.1}, learns_at_init=("gain",)),
)

COSTS = {  # L = 2, two sites
  ("rezero",): Costs(2, D, 4 * 2 * D),
  ("rezero", ("granularity", "sublayer")): Costs(4, D, 4 * 2 * D),
  ("layerscale",): Costs(4 * D, D, 4 * 2 * D),
  ("highway",): Costs(4 * (D**2 + D), D, 4 * (2 * D**2 + D + 3 * D)),  # product, bias, mix
  ("highway", ("granularity", "token")): Costs(4 * (D + 1), D, 4 * (2 * D + 3 * D)),
  ("deepnorm",): Costs(4 * 2 * D, D, 4 * (2 + 4 + 3) * D),
  ("keel",): Costs(4 * D, D, (4 * (2 + 4) + 2) * D),  # and plain sums at the first sites
  ("lns",): Costs(4 * D, D, 4 * (4 + 1) * D),  # square, sum, norm, gain; add
}

BAD_OPTIONS = (  # for 3 layers
  ("rezero", {"granularity": "channel"}, ["granularity='channel'", "layer, sublayer"]),
  ("rezero", {"pre_norm": 2}, ["pre_norm=2", "True, False"]),
  ("layerscale", {"init_value": -0.1}, ["init_value=-0.1", "init_value >= 0"]),
  ("highway", {"granularity": "layer"}, ["granularity='layer'", "token, channel"]),
  ("highway", {"bias_init": 0.0}, ["bias_init=0.0", "bias_init < 0"]),
  ("deepnorm", {"alpha": -1.0}, ["alpha=-1.0", "alpha >= 0"]),
  ("deepnorm", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
  ("keel", {"alpha": -1.0}, ["alpha=-1.0", "alpha >= 0"]),
  ("keel", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
  ("lns", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
)
