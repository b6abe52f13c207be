"""DenseFormer."""

from tests.helpers.systems.common import Case, Costs, D, num_layers, run_branch


def denseformer(params, weights, x, sites, *, dilation=1, period=1):
  packed = list(params["weight"])
  outputs = [x]
  y = x
  for i in range(1, num_layers(weights, sites) + 1):
    for site in sites:
      row = {name: array[i - 1] for name, array in weights[site].items()}
      y = y + run_branch(row, site, y)[1]
    outputs.append(y)
    if i % period == 0:
      averaged = [j for j in range(i + 1) if (i - j) % dilation == 0]
      y = sum(packed.pop(0) * outputs[j] for j in averaged)
  assert not packed
  return y


EQUATIONS = {"denseformer": denseformer}

CASES = tuple(
  Case("denseformer", options, standard_at_init=True, learns_at_init=("weight",))
  for options in (
    {},
    {"dilation": 2},
    {"period": 2},
    {"dilation": 3, "period": 2},
    {"dilation": 5, "period": 5},
  )
)

# L = 2, two sites; sums of 1, 2 and 3 sources, those with weight 0 included; 4 writes.
_FLOPS = (1 + 3 + 5 + 4) * D
COSTS = {
  ("denseformer",): Costs(2 + 3, 4 * D, _FLOPS),
  ("denseformer", ("dilation", 2)): Costs(1 + 2, 4 * D, _FLOPS),
  ("denseformer", ("period", 2)): Costs(3, 4 * D, _FLOPS),
}

BAD_OPTIONS = (  # for 3 layers
  ("denseformer", {"dilation": 0}, ["dilation=0", "1..3"]),
  ("denseformer", {"dilation": 4}, ["dilation=4", "1..3"]),
  ("denseformer", {"period": 0}, ["period=0", "1..3"]),
  ("denseformer", {"period": 4}, ["period=4", "1..3"]),
)
