"""Hyper-Connections."""

import numpy as np

from tests.helpers.reference import rms
from tests.helpers.systems.common import Case, sublayers


def layernorm(h, eps):
  centred = h - np.mean(h, axis=-1, keepdims=True)
  return centred / np.sqrt(np.var(h, axis=-1, keepdims=True) + eps)


def hyper_connections(
  params, weights, x, sites, *, num_streams=4, dynamic=True, norm="layernorm", eps=1e-6
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
      normed = normalise(streams, eps)
      read = s[0] * np.tanh(normed @ w[:, :1]) + read
      mix = s[0] * np.tanh(normed @ w[:, 1:-1]) + mix
      write = s[1] * np.swapaxes(np.tanh(normed @ w[:, -1:]), -1, -2) + write
    out = run((np.swapaxes(read, -1, -2) @ streams)[:, :, 0])[1]
    streams = np.swapaxes(write, -1, -2) @ out[:, :, None] + np.swapaxes(mix, -1, -2) @ streams
  return streams.sum(axis=2)


EQUATIONS = {"hyper_connections": hyper_connections}

_FRESH = {"standard_at_init": True}

CASES = (
  Case("hyper_connections", learns_at_init=("beta", "weight"), **_FRESH),
  Case("hyper_connections", {"norm": "rmsnorm"}, **_FRESH),
  Case("hyper_connections", {"num_streams": 3, "dynamic": False}, **_FRESH),
  Case("hyper_connections", {"num_streams": 1}, **_FRESH),
  Case("hyper_connections", {"num_streams": 1, "dynamic": False}, **_FRESH),
)

# L = 2, D = 3, two sites. R = 2: read 12, two new streams of three terms 36, the final sum 3;
# dynamic: two streams of 3 values with four logits 48, and LayerNorm 24 or RMS 12.
FLOPS = {
  ("hyper_connections", ("num_streams", 2), ("dynamic", False)): 4 * (12 + 36) + 3,
  ("hyper_connections", ("num_streams", 2)): 4 * (12 + 36 + 48 + 24) + 3,
  ("hyper_connections", ("num_streams", 2), ("norm", "rmsnorm")): 4 * (12 + 36 + 48 + 12) + 3,
}

BAD_OPTIONS = (
  ("hyper_connections", {"num_streams": 0}, ["num_streams=0", "num_streams >= 1"]),
  ("hyper_connections", {"dynamic": "static"}, ["dynamic='static'", "True, False"]),
  ("hyper_connections", {"norm": "l2"}, ["norm='l2'", "layernorm, rmsnorm"]),
  ("hyper_connections", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
)
