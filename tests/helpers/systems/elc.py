"""ELC-BERT."""

import numpy as np

from tests.helpers.systems.common import Case, Costs, D, num_layers, run_branch


def choice(logits, outputs):
  shares = np.exp(logits) / np.sum(np.exp(logits))
  return sum(share * y for share, y in zip(shares, outputs, strict=True))


def elc(params, weights, x, sites, *, variant="base", weighted_output=False, eps=1e-6):
  logits = list(params["logits"])
  outputs = [x]
  for layer in range(num_layers(weights, sites)):
    taken = [logits.pop(0) for _ in outputs] if layer else [0.0]
    mixed = choice(np.array(taken), outputs)
    y = 0.0
    for place, site in enumerate(sites):
      row = {name: array[layer] for name, array in weights[site].items()}
      seen = y if variant == "base" and place else mixed + y
      y = y + run_branch(row, site, seen)[1]
    if variant == "normalized":
      mean = y.mean(axis=-1, keepdims=True)
      y = (y - mean) / np.sqrt(np.mean((y - mean) ** 2, axis=-1, keepdims=True) + eps)
    outputs.append(y)
  if weighted_output:
    return choice(np.array(logits), outputs)
  assert not logits
  return outputs[-1]


EQUATIONS = {"elc": elc}

CASES = tuple(
  Case("elc", {"variant": variant, "weighted_output": weighted}, learns_at_init=("logits",))
  for variant in ("base", "zero", "normalized")
  for weighted in (False, True)
)

# L = 2, two sites; layers read 1 and 2 sources, one of them without a choice; the stream, and where
# it is kept apart the output; an output is normalised after each layer and at the end.
COSTS = {
  ("elc",): Costs(2, 4 * D, (1 + 3 + 2) * D),
  ("elc", ("weighted_output", True)): Costs(2 + 3, 4 * D, (1 + 3 + 2 + 5) * D),
  ("elc", ("variant", "zero")): Costs(2, 5 * D, (1 + 3 + 2 * 3) * D),
  ("elc", ("variant", "normalized")): Costs(2, 5 * D, (1 + 3 + 2 * 3 + 3 * 5) * D),
}

BAD_OPTIONS = (  # for 3 layers
  ("elc", {"variant": "one"}, ["variant='one'", "base, zero, normalized"]),
  ("elc", {"weighted_output": "yes"}, ["weighted_output='yes'", "True, False"]),
  ("elc", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
)
