"""Projected attention along depth."""

import numpy as np

from tests.helpers.reference import rms
from tests.helpers.systems.common import Case, Costs, D, sublayers


def depth_attention(params, weights, x, sites, *, window, num_heads, eps=1e-6):
  """Section 2 of arXiv 2603.16039 with K = window - 1, heads and norms; keys and values formed."""
  outputs = [x]  # h^(0), h^(1), ...
  for layer, index, run in sublayers(weights, sites):
    if index == 0:
      read = np.zeros_like(x)
      for head in range(num_heads):
        w_q, w_k, w_v = (params[name][layer][:, head] for name in ("query", "key", "value"))
        q = rms(x, eps) @ w_q
        keys = [rms(y, eps) @ w_k for y in outputs[-window:]]
        logits = np.stack([np.sum(q * k, axis=-1) for k in keys]) / np.sqrt(q.shape[-1])
        a = np.exp(logits - logits.max(axis=0))
        a = a / a.sum(axis=0)
        values = [rms(y, eps) @ w_v for y in outputs[-window:]]
        mixed = sum(share[..., None] * v for share, v in zip(a, values, strict=True))
        read = read + mixed @ params["output"][layer][head]
      x = x + read
    x = x + run(x)[1]
    if index == len(sites) - 1:
      outputs.append(x)
  return x


EQUATIONS = {"depth_attention": depth_attention}


def _case(window, num_heads):
  """Queries and keys do nothing where there is one source."""
  dead = tuple((layer,) for layer in range(5)) if window == 1 else ((0,),)
  return Case(
    "depth_attention",
    {"window": window, "num_heads": num_heads},
    dead={"query": dead, "key": dead},
    standard_at_init=True,
    learns_at_init=("output",),
  )


CASES = tuple(_case(*options) for options in ((2, 4), (1, 2), (3, 1), (8, 2)))

# L = 2, two sites: projections; norm of x and add; per source its norm, logits and mix; writes.
COSTS = {
  ("depth_attention", ("num_heads", 1)): Costs(
    2 * 4 * D**2, 4 * D, 2 * (4 * 2 * D**2 + 4 * D) + (1 + 2) * (2 + 4) * D + 4 * D
  ),
  ("depth_attention", ("num_heads", 3), ("window", 1)): Costs(
    2 * 4 * D**2, 4 * D, 2 * (4 * 2 * D**2 + 4 * D + (2 + 4 * 3) * D) + 4 * D
  ),
}

BAD_OPTIONS = (  # for 3 layers, D = 8
  ("depth_attention", {"window": 0}, ["window=0", "window >= 1"]),
  ("depth_attention", {"num_heads": 5}, ["num_heads=5", "divisors of d_model=8"]),
  ("depth_attention", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
)
