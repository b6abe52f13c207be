"""Hyper-Connections."""

import numpy as np

from tests.helpers.reference import rms
from tests.helpers.systems.common import Case, Costs, D, sublayers


def layernorm(h, eps):
  centred = h - np.mean(h, axis=-1, keepdims=True)
  return centred / np.sqrt(np.var(h, axis=-1, keepdims=True) + eps)


def hyper_connections(
  params, weights, x, sites, *, num_streams=4, dynamic=True, tanh=True, norm="layernorm", eps=1e-6
):
  """Section 12, in the paper's matrices; H [B, T, R, D]."""
  normalise = {"layernorm": layernorm, "rmsnorm": rms}[norm]
  streams = np.stack([x] * num_streams, axis=2)
  for layer, index, run in sublayers(weights, sites):
    read = params["alpha"][layer, index][:, :1]  # A_m [R, 1]
    mix = params["alpha"][layer, index][:, 1:]  # A_r [R, R]
    write = params["beta"][layer, index][None]  # B [1, R]
    if dynamic:
      w, s = params["weight"][layer, index], params["scale"][layer, index]
      bounded = np.tanh if tanh else np.positive
      normed = normalise(streams, eps)
      read = s[0] * bounded(normed @ w[:, :1]) + read
      mix = s[0] * bounded(normed @ w[:, 1:-1]) + mix
      write = s[1] * np.swapaxes(bounded(normed @ w[:, -1:]), -1, -2) + write
    out = run((np.swapaxes(read, -1, -2) @ streams)[:, :, 0])[1]
    streams = np.swapaxes(write, -1, -2) @ out[:, :, None] + np.swapaxes(mix, -1, -2) @ streams
  return streams.sum(axis=2)


EQUATIONS = {"hyper_connections": hyper_connections}

_FRESH = {"standard_at_init": True}

CASES = (
  Case("hyper_connections", {"num_streams": 3}, learns_at_init=("beta", "weight"), **_FRESH),
  Case("hyper_connections", learns_at_init=("beta", "weight"), **_FRESH),
  Case("hyper_connections", {"norm": "rmsnorm"}, **_FRESH),
  Case("hyper_connections", {"tanh": False}, **_FRESH),
  Case("hyper_connections", {"num_streams": 3, "dynamic": False}, **_FRESH),
  Case("hyper_connections", {"num_streams": 1}, **_FRESH),
  Case("hyper_connections", {"num_streams": 1, "dynamic": False}, **_FRESH),
)

# L = 2, two sites. R = 2: a read of two terms 3, two new streams of three terms 10, the final
# sum 5, less 2 at the first site, before which nothing is written; dynamic: two streams with four
# logits 16, and LayerNorm 8 or RMS 4.
COSTS = {
  ("hyper_connections", ("num_streams", 2), ("dynamic", False)): Costs(
    4 * (2 + 4 + 2), 3 * D, 4 * (3 + 10) * D + 3 * D, 6
  ),
  ("hyper_connections", ("num_streams", 2)): Costs(
    4 * (2 + 4 + 2 + 4 * D + 2), 3 * D, 4 * (3 + 10 + 16 + 8) * D + 3 * D, 6
  ),
  ("hyper_connections", ("num_streams", 2), ("norm", "rmsnorm")): Costs(
    4 * (2 + 4 + 2 + 4 * D + 2), 3 * D, 4 * (3 + 10 + 16 + 4) * D + 3 * D, 6
  ),
}

BAD_OPTIONS = (
  ("hyper_connections", {"num_streams": 0}, ["num_streams=0", "num_streams >= 1"]),
  ("hyper_connections", {"dynamic": "static"}, ["dynamic='static'", "True, False"]),
  ("hyper_connections", {"tanh": 1.0}, ["tanh=1.0", "True, False"]),
  ("hyper_connections", {"norm": "l2"}, ["norm='l2'", "layernorm, rmsnorm"]),
  ("hyper_connections", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
)
