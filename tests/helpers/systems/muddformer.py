"""MUDDFormer."""

import math

import numpy as np

from tests.helpers.reference import rms
from tests.helpers.systems.common import Case, Costs, D, num_layers, run_branch

erf = np.vectorize(math.erf)


def gelu(z):
  return 0.5 * z * (1 + erf(z / np.sqrt(2)))


def mix(newest, outputs, hidden, output, bias, eps):
  """One mixed stream; hidden [D, H], output [n, H], bias [n]."""
  inner = gelu(rms(newest, eps) @ hidden)
  streams = [(inner @ w + b)[..., None] * y for w, b, y in zip(output, bias, outputs, strict=True)]
  return sum(streams)


def layer_weights(params, layer, row_sizes):
  """W1 [D, H], W2 [n, H, 4] and b [n, 4] of a layer, n = layer + 1."""
  packed = slice(sum(range(2, layer + 1)), sum(range(2, layer + 2)))
  if row_sizes == "faithful":
    hidden, output = params["hidden"][layer - 1], params["output"][layer - 1]
  else:
    hidden, output = params["hidden"][layer], params["output"][packed]
  return hidden, output, params["bias"][packed]


def muddformer(params, weights, x, sites, *, row_sizes="stacked", pre_post_norm=False, eps=1e-6):
  if pre_post_norm:
    return muddformer_normed(params, weights, x, sites, row_sizes, eps)
  outputs = [x]
  for layer in range(num_layers(weights, sites)):
    y = outputs[-1]
    views = dict.fromkeys("qkvx", y)
    if layer:
      hidden, output, bias = layer_weights(params, layer, row_sizes)
      views = {
        view: mix(y, outputs, hidden, output[..., c], bias[:, c], eps)
        for c, view in enumerate("qkvx")
      }
    y = views["x"]
    for place, site in enumerate(sites):
      row = {name: array[layer] for name, array in weights[site].items()}
      y = y + run_branch(row, site, {"x": y} if place else views)[1]
    outputs.append(y)
  output, bias = params["final_output"][..., 0], params["final_bias"][..., 0]
  return mix(outputs[-1], outputs, params["final_hidden"], output, bias, eps)


def muddformer_normed(params, weights, x, sites, row_sizes, eps):
  """PreDANorm and PostDANorm of section 2.5: normalised sources, and a norm of the stream's mix."""
  y, sources = x, [params["embedding_scale"] * rms(x, eps)]

  def mixed(hidden, output, bias, c):
    # The weights come from the stream, whose scale does not matter to them but for eps.
    inner = gelu(rms(y, eps) @ hidden)
    weights = [inner @ w[:, c] + b[c] for w, b in zip(output, bias, strict=True)]
    return sum(w[..., None] * source for w, source in zip(weights, sources, strict=True))

  for layer in range(num_layers(weights, sites)):
    views = dict.fromkeys("qkvx", y)
    if layer:
      mixes = [mixed(*layer_weights(params, layer, row_sizes), c) for c in range(4)]
      mixes[3] = params["mix_scale"][layer] * rms(mixes[3], eps)
      views = {view: y + mix for view, mix in zip("qkvx", mixes, strict=True)}
    y = views["x"]
    for place, site in enumerate(sites):
      row = {name: array[layer] for name, array in weights[site].items()}
      y = y + run_branch(row, site, {"x": y} if place else views)[1]
    sources.append(params["source_scale"][layer] * rms(y, eps))
  mix = mixed(params["final_hidden"], params["final_output"], params["final_bias"], 0)
  return y + params["final_mix_scale"] * rms(mix, eps)


EQUATIONS = {"muddformer": muddformer}

_FRESH = {"standard_at_init": True, "learns_at_init": ("output", "bias", "final_output")}

CASES = (
  Case("muddformer", dead={"hidden": ((0,),)}, **_FRESH),
  Case("muddformer", {"row_sizes": "faithful"}, loop_only=True, **_FRESH),
  Case(
    "muddformer",
    {"pre_post_norm": True, "eps": 1e-2},
    dead={"hidden": ((0,),), "mix_scale": ((0,),)},
    **_FRESH,
  ),
)

# L = 2, two sites; norm, hidden layer and four sums (one for the output) of 1, 2 and 3 sources; 4
# writes. The weights themselves are numbers per source, not per channel.
_HIDDEN = 64
_LAYER = _HIDDEN * D + (_HIDDEN + 1) * 4 * 2
_FINAL = _HIDDEN * D + (_HIDDEN + 1) * 3
_NORMED = (3 + 2 * _HIDDEN) * D
COSTS = {
  ("muddformer",): Costs(
    _HIDDEN * D + _LAYER + _FINAL, 4 * D, 3 * _NORMED + (4 * 1 + 4 * 3 + 5 + 4) * D
  ),
  ("muddformer", ("pre_post_norm", True)): Costs(  # more: 3 norms of sources, 3 of mixes, 9 sums
    _HIDDEN * D + _LAYER + _FINAL + 6 * D,
    4 * D,
    3 * _NORMED + (4 * 1 + 4 * 3 + 5 + 4) * D + (3 * 4 + 3 * 4 + 9) * D,
  ),
  ("muddformer", ("row_sizes", "faithful")): Costs(
    _LAYER + _FINAL, 4 * D, 2 * _NORMED + (4 * 3 + 5 + 4) * D
  ),
}

BAD_OPTIONS = (  # for 3 layers
  ("muddformer", {"row_sizes": "packed"}, ["row_sizes='packed'", "stacked, faithful"]),
  ("muddformer", {"pre_post_norm": "pre"}, ["pre_post_norm='pre'", "True, False"]),
  ("muddformer", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
)
