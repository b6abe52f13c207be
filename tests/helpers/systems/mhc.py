"""Manifold-constrained Hyper-Connections, the variant without Sinkhorn, and that without mixing."""

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


def released_sinkhorn(logits, iterations, eps):
  """The transpose of C [..., R, R], as the code of DeepSeek-V4 computes and uses it."""
  c = np.exp(np.swapaxes(logits, -1, -2))
  c = c / c.sum(axis=-1, keepdims=True) + eps
  c = c / (c.sum(axis=-2, keepdims=True) + eps)
  for _ in range(iterations - 1):
    c = c / (c.sum(axis=-1, keepdims=True) + eps)
    c = c / (c.sum(axis=-2, keepdims=True) + eps)
  return np.swapaxes(c, -1, -2)


def birkhoff(logits, num_streams):
  """Convex combination of permutation matrices."""
  shares = np.exp(logits)
  shares = shares / shares.sum(axis=-1, keepdims=True)
  mix = np.zeros((*logits.shape[:-1], num_streams, num_streams))
  for k, order in enumerate(itertools.permutations(range(num_streams))):
    for row, column in enumerate(order):
      mix[..., row, column] += shares[..., k]
  return mix


def collapse(params, streams, before, head, eps, gate_eps):
  """The output of streams [B, T, R, D], of which the site before would read by [B, T, R]."""
  if head == "previous":
    return np.einsum("btr,btrd->btd", before, streams)
  if head == "sum":
    return streams.sum(axis=2)
  if head == "mean":
    return streams.mean(axis=2)
  phi, bias, a = (params[f"head_{name}"] for name in ("projection", "bias", "scale"))
  raw = rms(streams.reshape(*streams.shape[:2], -1), eps) @ phi.reshape(-1, phi.shape[-1])
  return np.einsum("btr,btrd->btd", sigmoid(a * raw + bias) + gate_eps, streams)


def dynamic(
  params, weights, x, sites, mixing, *, num_streams, eps, head, read_site,
  magnitude=2.0, pre_eps=0.0, post_eps=0.0,
):  # fmt: skip
  """x' = H_res x + H_postᵀ F(H_pre x), x [B, T, R, D]; or with H_pre of the site before."""
  r = num_streams
  before = np.broadcast_to(np.eye(r)[0], (*x.shape[:2], r))
  streams = np.stack([x] * r, axis=2)
  for layer, index, run in sublayers(weights, sites):
    phi, bias, a = (params[name][layer, index] for name in ("projection", "bias", "scale"))
    normed = rms(streams.reshape(*x.shape[:2], -1), eps)  # vec(x)
    raw = normed @ phi.reshape(-1, phi.shape[-1])
    pre = sigmoid(a[0] * raw[..., :r] + bias[:r]) + pre_eps
    post = magnitude * sigmoid(a[1] * raw[..., r : 2 * r] + bias[r : 2 * r]) + post_eps
    mix = mixing and mixing(a[2] * raw[..., 2 * r :] + bias[2 * r :])
    chosen, before = (before if read_site == "previous" else pre), pre
    out = run(np.einsum("btr,btrd->btd", chosen, streams))[1]
    streams = (mix @ streams if mixing else streams) + post[..., None] * out[:, :, None]
  return collapse(params, streams, before, head, eps, pre_eps)


def mhc(
  params, weights, x, sites, *, num_streams=4, sinkhorn_iterations=20, gate_eps=0.0,
  constraint="both", init="uniform", read_site="own", head="sum", eps=1e-6,
):  # fmt: skip
  def mixing(logits):
    square = logits.reshape(*logits.shape[:-1], num_streams, num_streams)
    if constraint != "both":
      positive = np.exp(square)
      return positive / positive.sum(axis={"rows": -1, "columns": -2}[constraint], keepdims=True)
    if gate_eps:
      return released_sinkhorn(square, sinkhorn_iterations, gate_eps)
    return sinkhorn(np.exp(square), sinkhorn_iterations)

  sizes = {"num_streams": num_streams, "eps": eps, "head": head, "read_site": read_site}
  return dynamic(params, weights, x, sites, mixing, **sizes, pre_eps=gate_eps)


def mhc_lite(
  params, weights, x, sites, *, num_streams=4, init="uniform", read_site="own", head="sum", eps=1e-6
):
  def mixing(logits):
    return birkhoff(logits, num_streams)

  sizes = {"num_streams": num_streams, "eps": eps, "head": head, "read_site": read_site}
  return dynamic(params, weights, x, sites, mixing, **sizes)


def independent_hc(
  params, weights, x, sites, *, num_streams=4, magnitude=2.0, gate_eps=1e-6,
  init="identity", read_site="own", head="learned", eps=1e-6,
):  # fmt: skip
  sizes = {"num_streams": num_streams, "eps": eps, "head": head, "read_site": read_site}
  gates = {"magnitude": magnitude, "pre_eps": gate_eps, "post_eps": gate_eps}
  return dynamic(params, weights, x, sites, None, **sizes, **gates)


EQUATIONS = {"mhc": mhc, "mhc_lite": mhc_lite, "independent_hc": independent_hc}


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
  if options.get("constraint") == "columns":  # which such a mix tells apart
    sites = ()
  options |= {} if num_streams == 4 else {"num_streams": num_streams}
  return Case(name, options, _mix_of(num_streams, *sites), standard_at_init)


# No read is by the p of the last site.
_LAST_READ = {
  "projection": ((-1, -1, ..., np.s_[:4]),),
  "bias": ((-1, -1, np.s_[:4]),),
  "scale": ((-1, -1, 0),),
}
# Three streams first: a doubly stochastic matrix of two is its own transpose.
CASES = (
  _case("mhc", sinkhorn_iterations=3, num_streams=3, init="identity"),
  _case("mhc"),
  _case("mhc", init="one_hot", num_streams=2, standard_at_init=False),
  _case("mhc", num_streams=1),
  _case("mhc", gate_eps=1e-3, sinkhorn_iterations=4, head="learned", standard_at_init=False),
  _case("mhc", gate_eps=1e-6, num_streams=3, init="home_stream", head="mean"),
  _case("mhc", read_site="previous", head="previous", sinkhorn_iterations=3, num_streams=3),
  _case("mhc", read_site="previous", gate_eps=1e-6, sinkhorn_iterations=2, head="previous"),
  _case("mhc", constraint="rows", num_streams=3),
  _case("mhc", constraint="columns", head="learned"),
  _case("mhc_lite", num_streams=3),
  _case("mhc_lite"),
  _case("mhc_lite", num_streams=3, init="identity"),
  _case("mhc_lite", num_streams=2, init="home_stream", head="learned"),
  _case("mhc_lite", num_streams=2, init="one_hot", standard_at_init=False),
  _case("mhc_lite", num_streams=1, init="identity"),
  _case("mhc_lite", num_streams=3, read_site="previous", head="previous"),
  Case("independent_hc", {"num_streams": 2}, {}, True),
  Case("independent_hc", standard_at_init=True),
  Case("independent_hc", {"init": "home_stream", "head": "sum", "gate_eps": 0.0}, {}, True),
  Case("independent_hc", {"num_streams": 2, "magnitude": 3.0, "init": "one_hot"}),
  Case("independent_hc", {"read_site": "previous"}, _LAST_READ, True),
  Case("independent_hc", {"num_streams": 1, "head": "mean", "init": "uniform"}, {}, True),
)


# L = 2, two sites: read, new streams, projection to all logits, norm; the final
# sum of R + 1 terms. Nothing is written before the first read: R products less.
COSTS = {
  ("mhc",): Costs(4 * ((4 * D + 1) * 24 + 3), 5 * D, 4 * (7 + 36 + 192 + 8) * D + 5 * D, 20),
  ("mhc", ("num_streams", 2)): Costs(
    4 * ((2 * D + 1) * 8 + 3), 3 * D, 4 * (3 + 10 + 32 + 4) * D + 3 * D, 6
  ),
  # What is read is a sum of R + 1 terms, the output too; of the first read one product is none.
  ("mhc", ("head", "previous"), ("read_site", "previous")): Costs(
    4 * ((4 * D + 1) * 24 + 3), 5 * D, 4 * (9 + 36 + 192 + 8) * D + 4 * D, 25
  ),
  ("mhc", ("constraint", "rows")): Costs(
    4 * ((4 * D + 1) * 24 + 3), 5 * D, 4 * (7 + 36 + 192 + 8) * D + 5 * D, 20
  ),
  ("mhc_lite",): Costs(4 * ((4 * D + 1) * 32 + 3), 5 * D, 4 * (7 + 36 + 256 + 8) * D + 5 * D, 20),
  ("mhc_lite", ("num_streams", 3)): Costs(
    4 * ((3 * D + 1) * 12 + 3), 4 * D, 4 * (5 + 21 + 72 + 6) * D + 4 * D, 12
  ),
  # M = I is a matrix like any other; a head like a read.
  ("independent_hc",): Costs(
    4 * (8 * (4 * D + 1) + 2) + 4 * (4 * D + 1) + 1,
    5 * D,
    4 * (7 + 36 + 64 + 8) * D + (3 + 36 + 32 + 8) * D,
    20,
  ),
  ("independent_hc", ("num_streams", 2), ("head", "sum")): Costs(
    4 * (4 * (2 * D + 1) + 2), 3 * D, 4 * (3 + 10 + 16 + 4) * D + 3 * D, 6
  ),
}

BAD_OPTIONS = (
  ("mhc", {"num_streams": 0}, ["num_streams=0", "num_streams >= 1"]),
  ("mhc", {"sinkhorn_iterations": 0}, ["sinkhorn_iterations=0", "sinkhorn_iterations >= 1"]),
  ("mhc", {"init": "zeros"}, ["init='zeros'", "uniform, identity, one_hot, home_stream"]),
  ("mhc", {"gate_eps": -1e-6}, ["gate_eps=-1e-06", "gate_eps >= 0"]),
  ("mhc", {"head": "last"}, ["head='last'", "sum, mean, learned, previous"]),
  ("mhc", {"head": "previous"}, ["head='previous'", "read_site=previous"]),
  ("mhc", {"read_site": "next"}, ["read_site='next'", "own, previous"]),
  ("mhc", {"constraint": "none"}, ["constraint='none'", "both, rows, columns"]),
  ("mhc", {"eps": -1.0}, ["eps=-1.0", "eps > 0"]),
  ("mhc_lite", {"num_streams": 0}, ["num_streams=0", "1..4"]),
  ("mhc_lite", {"num_streams": 5}, ["num_streams=5", "1..4"]),
  ("mhc_lite", {"init": ""}, ["init=''", "uniform, identity, one_hot"]),
  ("mhc_lite", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
  ("mhc_lite", {"head": ""}, ["head=''", "sum, mean, learned"]),
  ("independent_hc", {"num_streams": 0}, ["num_streams=0", "num_streams >= 1"]),
  ("independent_hc", {"magnitude": 0.0}, ["magnitude=0.0", "magnitude > 0"]),
  ("independent_hc", {"gate_eps": -1.0}, ["gate_eps=-1.0", "gate_eps >= 0"]),
  ("independent_hc", {"init": "mean"}, ["init='mean'", "uniform, identity, one_hot, home_stream"]),
  ("independent_hc", {"head": "last"}, ["head='last'", "sum, mean, learned"]),
  ("independent_hc", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
)
