"""Wide residuals of Megatron-Core."""

import numpy as np

from tests.helpers.systems.common import Case, Costs, D, sigmoid, sublayers


def wide_residual(
  params, weights, x, sites, *, num_streams=4, write_spread=0.01, max_forget=0.0, retention=0.999
):
  """X: [R, B, T, D]; w = 2 sigmoid(beta), r = sigmoid(a), rho = 1 - m sigmoid(-c)."""
  wide = np.stack([x] * num_streams)
  for layer, index, run in sublayers(weights, sites):
    read, write = (sigmoid(params[f"{name}_logit"][layer, index]) for name in ("read", "write"))
    out = run(np.tensordot(read, wide, axes=1))[1]
    if max_forget:
      rho = 1 - max_forget * sigmoid(-params["retention_logit"][layer, index])
      wide = rho[:, None, None, None] * wide
    wide = wide + np.multiply.outer(2 * write, out)
  return np.tensordot(sigmoid(params["final_logit"]), wide, axes=1)


EQUATIONS = {"wide_residual": wide_residual}

_LEARNS = ("read_logit", "write_logit", "final_logit")

CASES = (
  Case("wide_residual", standard_at_init=True, learns_at_init=_LEARNS),
  Case("wide_residual", {"num_streams": 3, "write_spread": 0.5}, standard_at_init=True),
  Case(
    "wide_residual",
    {"num_streams": 2, "max_forget": 0.1},
    learns_at_init=(*_LEARNS, "retention_logit"),
  ),
)

# L = 2, two sites: a read of R terms, and R new streams of R + 1 terms each; the output is a read,
# too. Nothing is written before the first one: R products less.
COSTS = {
  ("wide_residual",): Costs(4 * 8 + 4, 5 * D, (4 * 7 + 4 * 36 + 7 + 36 - 4) * D, 20),
  ("wide_residual", ("num_streams", 2), ("max_forget", 0.1)): Costs(
    4 * 6 + 2, 3 * D, (4 * 3 + 4 * 10 + 3 + 10 - 2) * D, 6
  ),
}

BAD_OPTIONS = (
  ("wide_residual", {"num_streams": 1}, ["num_streams=1", "num_streams >= 2"]),
  ("wide_residual", {"write_spread": -0.1}, ["write_spread=-0.1", "write_spread >= 0"]),
  ("wide_residual", {"max_forget": 1.0}, ["max_forget=1.0", "0 <= max_forget < 1"]),
  (
    "wide_residual",
    {"max_forget": 0.1, "retention": 0.9},
    ["retention=0.9", "between 0.9 and 1 with max_forget=0.1"],
  ),
)
