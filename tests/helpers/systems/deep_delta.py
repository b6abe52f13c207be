"""Deep Delta Learning."""

import numpy as np

from tests.helpers.systems.common import Case, Costs, D, sigmoid, sublayers


def short_conv(x, taps):
  """y_t = Σ_s taps_s x_{t − s} over the tokens of [B, T, D]; taps: [kernel_size, D]."""
  y = np.zeros_like(x)
  for t in range(x.shape[1]):
    for s in range(min(len(taps), t + 1)):
      y[:, t] += taps[s] * x[:, t - s]
  return y


def compress(state, mix=None, pool=None, taps=None):
  """Appendix A.2, channel: Σ_j c_ij X_ij; token: short convolutions, then a read vector."""
  rows = range(state.shape[3])
  if mix is not None:
    return sum(mix[j] * state[..., j] for j in rows)
  if pool is not None:
    return sum(pool[j] * short_conv(state[..., j], taps[:, j]) for j in rows)
  return state[..., 0]


def rewrite(state, out, beta, v, eps):
  """(I − β k kᵀ) X + β k vᵀ for every token; X: [D, R], k: [D], v: [R]."""
  new = np.zeros_like(state)
  for at in np.ndindex(state.shape[:2]):
    k = out[at] / np.sqrt(np.sum(out[at] ** 2) + eps**2)
    erase = np.eye(len(k)) - beta[at] * np.outer(k, k)
    new[at] = erase @ state[at] + beta[at] * np.outer(k, v[at])
  return new


def deep_delta(
  params,
  weights,
  x,
  sites,
  *,
  value_width=4,
  compressor="channel",
  kernel_size=4,
  embedding_expansion=True,
  shared_compressor=False,
  value="linear",
  beta_init=1.0,
  beta_hidden=0,
  eps=1e-5,
):
  """Sections 2 and 3, appendix A; X: [B, T, D, R]."""
  del beta_init, kernel_size  # an initial value; the length of the filters
  columns = [x] * value_width
  if embedding_expansion:
    columns = [short_conv(x, params["expand"][:, j]) for j in range(value_width)]
  state = np.stack(columns, axis=-1)
  used = {"none": (), "channel": ("mix",), "token": ("pool", "taps")}[compressor]
  for layer, index, run in sublayers(weights, sites):
    place = layer, 0 if shared_compressor else index
    x_in = compress(state, **{name: params[name][place] for name in used})
    normed, out = run(x_in)
    c = normed["x"]
    hidden = np.tanh(c @ params["beta_in"][layer, index]) if beta_hidden else c
    logit = hidden @ params["beta_weight"][layer, index] + params["beta_bias"][layer, index]
    beta = 2 * sigmoid(logit)
    w = params["value_weight"][layer, index].T
    v = c @ w
    if value == "sigmoid":
      v = 4 * sigmoid(x_in @ w + params["value_bias"][layer, index])
    state = rewrite(state, out, beta, v, eps)
  return compress(state, **{name: params[f"final_{name}"] for name in used})


EQUATIONS = {"deep_delta": deep_delta}

PLAIN_WIDTH = {"value_width": 1, "compressor": "none", "embedding_expansion": False}
CHANNEL = {"value_width": 2, "compressor": "channel", "embedding_expansion": False}
TOKEN = {"value_width": 2, "compressor": "token", "embedding_expansion": False}
_UPDATE = ("beta_weight", "beta_bias", "value_weight")


def _case(*learns, **options):
  """Around β = 1 ten sublayers amplify rounding errors a hundred times, around 0.1 a few times."""
  learns_at_init = (*_UPDATE, *learns)
  return Case("deep_delta", {"beta_init": 0.1, **options}, learns_at_init=learns_at_init)


CASES = (
  _case(**PLAIN_WIDTH),
  _case("value_bias", **PLAIN_WIDTH, value="sigmoid", eps=0.1),
  _case("mix", "final_mix", "expand"),
  _case("mix", "final_mix", **CHANNEL),
  _case("mix", "value_bias", **CHANNEL, shared_compressor=True, value="sigmoid"),
  _case("pool", "taps", "final_pool", "final_taps", **TOKEN, kernel_size=3),
  _case("pool", "taps", "expand", **TOKEN | {"embedding_expansion": True}, value="sigmoid"),
  _case("pool", "taps", **TOKEN, shared_compressor=True, kernel_size=2),
  _case("beta_in", **CHANNEL, beta_hidden=6),
)

# L = 2, two sites: an update has D + 1 + R D parameters and costs (5 + 6 R) D; a compressor sums R
# terms per tap, the expansion makes R sums of a term per tap.
COSTS = {
  ("deep_delta", *PLAIN_WIDTH.items()): Costs(4 * (2 * D + 1), D, 4 * 11 * D),
  ("deep_delta",): Costs(
    4 * (5 * D + 1) + 5 * 4 * D + 16 * D, 4 * D, 4 * 29 * D + 5 * 7 * D + 4 * 7 * D
  ),
  ("deep_delta", *CHANNEL.items()): Costs(
    4 * (3 * D + 1) + 5 * 2 * D, 2 * D, 4 * 17 * D + 5 * 3 * D
  ),
  ("deep_delta", *CHANNEL.items(), ("beta_hidden", 3)): Costs(
    4 * (2 * D + 3 * (D + 1) + 1) + 5 * 2 * D, 2 * D, 4 * (5 + 6 * 2 - 2 + 2 * 3) * D + 5 * 3 * D
  ),
  ("deep_delta", *TOKEN.items()): Costs(
    4 * (3 * D + 1) + 5 * (8 * D + 2), 2 * D, 4 * 17 * D + 5 * 15 * D
  ),
  ("deep_delta", ("compressor", "token"), ("kernel_size", 2)): Costs(
    4 * (5 * D + 1) + 5 * (8 * D + 4) + 8 * D, 4 * D, 4 * 29 * D + 5 * 15 * D + 4 * 3 * D
  ),
}

BAD_OPTIONS = (  # for 3 layers
  ("deep_delta", {"width": 2}, ["'width'", "'deep_delta'", "allowed: value_width"]),
  ("deep_delta", {"value_width": 0}, ["value_width=0", "value_width >= 1"]),
  ("deep_delta", {"value_width": 1}, ["compressor='channel'", "'none' with value_width=1"]),
  (
    "deep_delta",
    {"compressor": "none"},
    ["compressor='none'", "'channel' or 'token' with value_width=4"],
  ),
  ("deep_delta", {"compressor": "time"}, ["compressor='time'", "'channel' or 'token'"]),
  (
    "deep_delta",
    {"value_width": 1, "compressor": "none"},
    ["embedding_expansion=True", "False with value_width=1"],
  ),
  ("deep_delta", {"kernel_size": 1}, ["kernel_size=1", "kernel_size >= 2"]),
  ("deep_delta", {"value": "tanh"}, ["value='tanh'", "'linear' or 'sigmoid'"]),
  ("deep_delta", {"beta_init": 0.0}, ["beta_init=0.0", "0 < beta_init < 2"]),
  ("deep_delta", {"beta_init": 2.0}, ["beta_init=2.0", "0 < beta_init < 2"]),
  ("deep_delta", {"beta_init": float("nan")}, ["beta_init=nan", "0 < beta_init < 2"]),
  ("deep_delta", {"beta_hidden": -1}, ["beta_hidden=-1", "beta_hidden >= 0"]),
  ("deep_delta", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
)
