"""Manifold-constrained Hyper-Connections, and the variant without Sinkhorn."""

import itertools

import numpy as np

from tests.helpers.reference import rms
from tests.helpers.systems.common import Case, Costs, D, sigmoid, sublayers


def sinkhorn(matrix, iterations):
  """Columns, then rows, of [..., R, R] with positive entries."""
  for _ in range(iterations):
    matrix = matrix / matrix.sum(axis=-2, keepdims=True)
    matrix = matrix / matrix.sum(axis=-1, keepdims=True)
  return matrix


def birkhoff(logits, num_streams):
  """Convex combination of permutation matrices."""
  shares = np.exp(logits)
  shares = shares / shares.sum(axis=-1, keepdims=True)
  mix = np.zeros((*logits.shape[:-1], num_streams, num_streams))
  for k, order in enumerate(itertools.permutations(range(num_streams))):
    for row, column in enumerate(order):
      mix[..., row, column] += shares[..., k]
  return mix


def constrained(params, weights, x, sites, num_streams, eps, doubly_stochastic):
  """x' = H_res x + H_postᵀ F(H_pre x), x [B, T, R, D]."""
  r = num_streams
  streams = np.stack([x] * r, axis=2)
  for layer, index, run in sublayers(weights, sites):
    phi, bias, a = (params[name][layer, index] for name in ("projection", "bias", "scale"))
    normed = rms(streams.reshape(*x.shape[:2], -1), eps)  # vec(x)
    raw = normed @ phi.reshape(-1, phi.shape[-1])
    pre = sigmoid(a[0] * raw[..., :r] + bias[:r])
    post = 2 * sigmoid(a[1] * raw[..., r : 2 * r] + bias[r : 2 * r])
    mix = doubly_stochastic(a[2] * raw[..., 2 * r :] + bias[2 * r :])
    out = run(np.einsum("btr,btrd->btd", pre, streams))[1]
    streams = mix @ streams + post[..., None] * out[:, :, None]
  return streams.sum(axis=2)


def mhc(
  params, weights, x, sites, *, num_streams=4, sinkhorn_iterations=20, init="uniform", eps=1e-6
):
  def doubly_stochastic(logits):
    square = logits.reshape(*logits.shape[:-1], num_streams, num_streams)
    return sinkhorn(np.exp(square), sinkhorn_iterations)

  return constrained(params, weights, x, sites, num_streams, eps, doubly_stochastic)


def mhc_lite(params, weights, x, sites, *, num_streams=4, init="uniform", eps=1e-6):
  def doubly_stochastic(logits):
    return birkhoff(logits, num_streams)

  return constrained(params, weights, x, sites, num_streams, eps, doubly_stochastic)


EQUATIONS = {"mhc": mhc, "mhc_lite": mhc_lite}


def _mix_of(num_streams, *sites):
  """The logits of M at some sites; all of them with one stream."""
  res = np.s_[2 * num_streams :]
  return {
    "projection": tuple((*site, ..., res) for site in sites),
    "bias": tuple((*site, ..., res) for site in sites),
    "scale": tuple((*site, ..., 2) for site in sites),
  }


def _case(name, num_streams=4, standard_at_init=True, **options):
  sites = ((),) if num_streams == 1 else ((0, 0),)  # the first site mixes copies
  options |= {} if num_streams == 4 else {"num_streams": num_streams}
  return Case(name, options, _mix_of(num_streams, *sites), standard_at_init)


CASES = (
  _case("mhc", sinkhorn_iterations=3, num_streams=3, init="identity"),
  _case("mhc"),
  _case("mhc", init="one_hot", num_streams=2, standard_at_init=False),
  _case("mhc", num_streams=1),
  _case("mhc_lite"),
  _case("mhc_lite", num_streams=3, init="identity"),
  _case("mhc_lite", num_streams=2, init="one_hot", standard_at_init=False),
  _case("mhc_lite", num_streams=1, init="identity"),
)


# L = 2, two sites: read, new streams, projection to all logits, norm; final sum.
COSTS = {
  ("mhc",): Costs(4 * ((4 * D + 1) * 24 + 3), 4 * D, 4 * (7 + 36 + 192 + 8) * D + 3 * D),
  ("mhc", ("num_streams", 2)): Costs(
    4 * ((2 * D + 1) * 8 + 3), 2 * D, 4 * (3 + 10 + 32 + 4) * D + D
  ),
  ("mhc_lite",): Costs(4 * ((4 * D + 1) * 32 + 3), 4 * D, 4 * (7 + 36 + 256 + 8) * D + 3 * D),
  ("mhc_lite", ("num_streams", 3)): Costs(
    4 * ((3 * D + 1) * 12 + 3), 3 * D, 4 * (5 + 21 + 72 + 6) * D + 2 * D
  ),
}

BAD_OPTIONS = (
  ("mhc", {"num_streams": 0}, ["num_streams=0", "num_streams >= 1"]),
  ("mhc", {"sinkhorn_iterations": 0}, ["sinkhorn_iterations=0", "sinkhorn_iterations >= 1"]),
  ("mhc", {"init": "zeros"}, ["init='zeros'", "uniform, identity, one_hot"]),
  ("mhc", {"eps": -1.0}, ["eps=-1.0", "eps > 0"]),
  ("mhc_lite", {"num_streams": 0}, ["num_streams=0", "1..4"]),
  ("mhc_lite", {"num_streams": 5}, ["num_streams=5", "1..4"]),
  ("mhc_lite", {"init": ""}, ["init=''", "uniform, identity, one_hot"]),
  ("mhc_lite", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
)
