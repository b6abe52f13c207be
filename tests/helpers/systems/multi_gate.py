"""Multi-Gate Residuals."""

import numpy as np

from tests.helpers.reference import depth_read, rms
from tests.helpers.systems.attn_res import read
from tests.helpers.systems.common import Case, Costs, D, sigmoid, sublayers


def multi_gate(params, weights, x, sites, *, num_streams=4, gate="competitive", eps=1e-6):
  """A list of streams that grows to R; then the gates of the paper's two forms."""
  root = np.sqrt(x.shape[-1])
  streams = [x]

  def pooled(w):
    return depth_read(w / root, np.ones_like(w), streams, eps)

  for layer, index, run in sublayers(weights, sites):
    at = layer, index
    out = run(pooled(params["query"][at]))[1]
    if len(streams) < num_streams:
      streams.append(out)
      continue
    u, b = params["gate_query"][at], params["gate_bias"][at]
    scores = [np.sum(u * rms(s, eps), axis=-1) / root for s in streams]
    if gate == "independent":
      betas = [sigmoid(z + b[s]) for s, z in enumerate(scores)]
    else:
      total = np.exp(b[0]) + sum(np.exp(z) for z in scores)
      betas = [np.exp(z) / total for z in scores]
    streams = [
      (1 - beta[..., None]) * s + beta[..., None] * out
      for s, beta in zip(streams, betas, strict=True)
    ]
  return pooled(params["final_query"])


EQUATIONS = {"multi_gate": multi_gate}


def _case(num_streams, gate):
  """The first read has one stream, and with one stream all have; outputs that open use no gate."""
  opening = tuple((i // 2, i % 2) for i in range(num_streams - 1))
  dead = {"query": ((0, 0),) if num_streams > 1 else ((),)}
  dead |= dict.fromkeys(["gate_query", "gate_bias"], opening)
  if num_streams == 1:
    dead["final_query"] = ((),)
  learns = ("query", "gate_query", "gate_bias", "final_query")
  options = {"num_streams": num_streams, "gate": gate}
  return Case("multi_gate", options, dead, learns_at_init=learns)


CASES = (
  _case(4, "competitive"),
  _case(4, "independent"),
  _case(2, "competitive"),
  _case(1, "independent"),
)

# L = 2, two sites, R = 2. Reads of both slots, filled or not, and of the output; scores 4 and moves
# 3 for each stream.
_FLOPS = 5 * read(2) + 4 * 2 * (4 + 3) * D
COSTS = {
  ("multi_gate", ("num_streams", 2)): Costs(4 * 2 * D + D + 4, 2 * D, _FLOPS),
  ("multi_gate", ("num_streams", 2), ("gate", "independent")): Costs(
    4 * 2 * D + D + 4 * 2, 2 * D, _FLOPS
  ),
}

BAD_OPTIONS = (  # for 3 layers, D = 8
  ("multi_gate", {"gate": "softmax"}, ["gate='softmax'", "competitive, independent"]),
  ("multi_gate", {"num_streams": 0}, ["num_streams=0", "num_streams >= 1"]),
  ("multi_gate", {"num_streams": 6}, ["num_streams=6", "below 4.6", "6 sublayers"]),
  ("multi_gate", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
)
