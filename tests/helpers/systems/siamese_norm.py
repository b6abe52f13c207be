"""SiameseNorm."""

import numpy as np

from tests.helpers.reference import rms
from tests.helpers.systems.common import Case, Costs, D, sublayers


def siamese_norm(params, weights, x, sites, *, eps=1e-6):
  """X <- PostNorm(X); Z = F(InputNorm(X + PreNorm(Y))); X <- X + Z / c, Y <- Y + Z."""
  y = np.array(x)
  for layer, index, run in sublayers(weights, sites):
    x = params["post_gain"][layer, index] * rms(x, eps)
    z = run(x + params["pre_gain"][layer, index] * rms(y, eps))[1]
    x = x + z / np.sqrt(len(sites) * (1 + layer))
    y = y + z
  return params["final_post_gain"] * rms(x, eps) + params["final_pre_gain"] * rms(y, eps)


EQUATIONS = {"siamese_norm": siamese_norm}

_GAINS = ("post_gain", "pre_gain", "final_post_gain", "final_pre_gain")

CASES = (
  Case("siamese_norm", learns_at_init=_GAINS),
  Case("siamese_norm", {"eps": 0.1}, learns_at_init=_GAINS),
)

# L = 2, two sites: two norms of 4 D and their sum at every site and at the end; scale and two adds.
COSTS = {("siamese_norm",): Costs(2 * (4 + 1) * D, 2 * D, 5 * 9 * D + 4 * 3 * D)}

BAD_OPTIONS = (("siamese_norm", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),)
