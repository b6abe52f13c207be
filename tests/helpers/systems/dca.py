"""DeepCrossAttention."""

import numpy as np

from tests.helpers.systems.common import Case, Costs, D, num_layers, run_branch

VIEWS = ("q", "k", "v", "x")


def grn(sources, bias, query):
  """Generalised residual network; bias: a scalar or [D] per source, query: [D] or None."""
  total = 0.0
  for b, g in zip(bias, sources, strict=True):
    gate = 0.0 if query is None else np.maximum(g @ query, 0.0)[..., None]
    total = total + (b + gate) * g
  return total


def stack(deltas, last):
  """Sources of a layer: all, or the embedding, the sum of the middle, the last k."""
  embedding, *rest = deltas
  if not last or len(rest) <= last:
    return deltas
  return [embedding, sum(rest[:-last]), *rest[-last:]]


def deep_cross_attention(params, weights, x, sites, *, version=3, last=0):
  bias = list(params["bias"])  # one [views] or [views, D] per layer and source
  deltas = [x]
  for layer in range(num_layers(weights, sites)):
    sources = stack(deltas, last)
    mine = np.stack([bias.pop(0) for _ in sources])
    query = params["query"][layer] if version == 3 else [None] * 4
    views = {view: grn(sources, mine[:, i], query[i]) for i, view in enumerate(VIEWS)}
    delta = 0.0
    for place, site in enumerate(sites):
      row = {name: array[layer] for name, array in weights[site].items()}
      seen = {"x": views["x"] + delta} if place else views
      delta = delta + run_branch(row, site, seen)[1]
    deltas.append(delta)
  assert not bias
  return grn(stack(deltas, last), params["final_bias"], params.get("final_query"))


EQUATIONS = {"deep_cross_attention": deep_cross_attention}


def _case(version, last):
  learns = ("final_bias", "query", "final_query") if version == 3 else ("final_bias",)
  exact = version != 3
  options = {"version": version, "last": last}
  return Case("deep_cross_attention", options, standard_at_init=exact, learns_at_init=learns)


CASES = tuple(_case(version, last) for version in (1, 2, 3) for last in (0, 1, 3))

# L = 2, two sites; 4 readers of 1 and 2 sources, one of 3; 3 additions per layer. A slot that holds
# nothing yet is zero for all tokens: its gate's product and two sums.
_BIASES = 4 * (1 + 2) + 3
COSTS = {
  ("deep_cross_attention",): Costs(
    (_BIASES + 4 * 2 + 1) * D, 5 * D, (4 * (5 + 11) + 17 + 2 * 3) * D
  ),
  ("deep_cross_attention", ("version", 1)): Costs(_BIASES, 5 * D, (4 * (1 + 3) + 5 + 2 * 3) * D),
  ("deep_cross_attention", ("version", 2)): Costs(
    _BIASES * D, 5 * D, (4 * (1 + 3) + 5 + 2 * 3) * D
  ),
  ("deep_cross_attention", ("last", 1)): Costs(
    (_BIASES + 4 * 2 + 1) * D,
    5 * D,
    (4 * (5 + 2 * 3) + 4 * (11 + 3) + 17 + 2 * 3 + 1) * D,  # 1: the first g joins the sum
  ),
}

BAD_OPTIONS = (  # for 3 layers
  ("deep_cross_attention", {"version": 4}, ["version=4", "1, 2, 3"]),
  ("deep_cross_attention", {"last": -1}, ["last=-1", "0..2"]),
  ("deep_cross_attention", {"last": 3}, ["last=3", "0..2"]),
)
