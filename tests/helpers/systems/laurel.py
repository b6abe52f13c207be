"""LAuReL."""

import numpy as np

from tests.helpers.reference import rms
from tests.helpers.systems.common import Case, Costs, D, sublayers


def laurel(params, weights, x, sites, *, variant="rw+lr", rank=4, num_previous=3, normalize="none"):
  """Equations 2 to 6; x_i is the stream before sublayer i."""
  streams, used = [x], 0
  for layer, index, run in sublayers(weights, sites):
    i = len(streams) - 1
    alpha, beta = 1.0, 1.0
    if "rw" in variant:
      alpha, beta = params["mix"][layer, index]
      if normalize == "softmax":
        total = np.exp(alpha) + np.exp(beta)
        alpha, beta = np.exp(alpha) / total, np.exp(beta) / total
    linear = streams[i]
    if "pa" in variant:
      for j in range(min(num_previous, i + 1)):
        if "lr" in variant:
          h = params["down"][used] @ params["up"][used]
        elif rank:
          h = params["down"][layer, index] @ params["up"][layer, index]
        else:
          h = np.eye(x.shape[-1])
        linear = linear + params["gamma"][used] * (streams[i - j] @ h)
        used += 1
    elif "lr" in variant:
      linear = linear + streams[i] @ params["down"][layer, index] @ params["up"][layer, index]
    streams.append(alpha * run(streams[i])[1] + beta * linear)
  return streams[-1]


def gemma3n_laurel(params, weights, x, sites, *, rank=0, eps=1e-6):
  del rank
  for layer, index, run in sublayers(weights, sites):
    normed, out = run(x)
    if sites[index] == ("attention" if "attention" in sites else sites[0]):
      mapped = normed["x"] @ params["down"][layer] @ params["up"][layer]
      out = out + normed["x"] + params["scale"][layer] * rms(mapped, eps)
      x = (x + out) / np.sqrt(2)
    else:
      x = x + out
  return x


EQUATIONS = {"laurel": laurel, "gemma3n_laurel": gemma3n_laurel}

CASES = (  # the stream of more maps with random parameters grows beyond 1000
  Case("laurel", standard_at_init=True, learns_at_init=("mix", "up")),
  Case("laurel", {"variant": "rw"}, standard_at_init=True, learns_at_init=("mix",)),
  Case("laurel", {"variant": "rw", "normalize": "softmax"}, learns_at_init=("mix",)),
  Case("laurel", {"variant": "lr", "rank": 2}, standard_at_init=True, learns_at_init=("up",)),
  Case(
    "laurel",
    {"variant": "pa", "rank": 1, "num_previous": 2},
    standard_at_init=True,
    learns_at_init=("up",),
  ),
  Case(
    "laurel",
    {"variant": "pa", "rank": 0, "num_previous": 4},
    standard_at_init=True,
    learns_at_init=("gamma",),
  ),
  Case("laurel", {"variant": "rw+pa", "num_previous": 1}, standard_at_init=True),
  Case("gemma3n_laurel", {"rank": 4}, learns_at_init=("scale",)),
  Case(
    "laurel",
    {"variant": "rw+lr+pa", "rank": 1, "num_previous": 2},
    standard_at_init=True,
    learns_at_init=("mix", "up"),
  ),
)

# L = 2, two sites; r: a map costs 4 r D. For k = 2 there are 1 + 2 + 2 + 2 streams, and the sum
# over them takes k at every sublayer, with weight 0 where there is no second one.
COSTS = {
  ("laurel", ("variant", "rw"), ("rank", 1)): Costs(4 * 2, D, 4 * 3 * D),
  ("laurel", ("variant", "lr"), ("rank", 2)): Costs(4 * 2 * 2 * D, D, 4 * (4 * 2 + 2) * D),
  ("laurel", ("variant", "pa"), ("rank", 2), ("num_previous", 2)): Costs(
    4 * 2 * 2 * D + 7, 5 * D, 4 * (3 + 4 * 2 + 2) * D
  ),
  ("laurel", ("variant", "pa"), ("rank", 0), ("num_previous", 2)): Costs(7, 5 * D, 4 * (3 + 2) * D),
  ("gemma3n_laurel", ("rank", 2)): Costs(
    2 * (2 * 2 + 1) * D, D, 2 * (4 * 2 + 3 + 1 + 4) * D + 2 * D
  ),
  ("laurel", ("variant", "rw+lr"), ("rank", 1)): Costs(4 * (2 + 2 * D), D, 4 * (4 + 1 + 3) * D),
  ("laurel", ("variant", "rw+lr+pa"), ("rank", 1), ("num_previous", 2)): Costs(
    4 * 2 + 7 * (2 * D + 1), 5 * D, 4 * (2 * (4 + 1) + 3) * D
  ),
}

BAD_OPTIONS = (
  (
    "laurel",
    {"variant": "lr", "normalize": "softmax"},
    ["normalize='softmax'", "none with variant='lr'"],
  ),  # for 3 layers
  ("laurel", {"variant": "rl"}, ["variant='rl'", "rw, lr, pa, rw+lr, rw+pa, rw+lr+pa"]),
  ("laurel", {"rank": 0}, ["rank=0", "1..8"]),
  ("laurel", {"rank": 9}, ["rank=9", "1..8"]),
  ("laurel", {"variant": "pa", "rank": -1}, ["rank=-1", "0..8"]),
  ("laurel", {"num_previous": 0}, ["num_previous=0", "num_previous >= 1"]),
  ("gemma3n_laurel", {"rank": 9}, ["rank=9", "0..8"]),
  ("gemma3n_laurel", {"rank": 4, "eps": 0.0}, ["eps=0.0", "eps > 0"]),
  ("laurel", {"normalize": "tanh"}, ["normalize='tanh'", "none, softmax"]),
)
