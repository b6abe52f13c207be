"""Does LNS need five times the rate? `lns` and `standard`, each at the same two rates.

The argument is a shape of configs/ablations/depthbench_1m.py and the rate that its sweep tuned for
`standard`: DepthBench found 1e-2 best for LNS and 2e-3 for pre-norm.

  resjax sweep --config=ablations/lns_rate:24,0.004

Planned before the runs: yes if `lns` is better at five times the rate than at the rate of
`standard`, and `standard` is not; no if `lns` is worse or equal.

Hardware: 2 CPU cores, 1 GB of memory. Time: 20 runs of two minutes of CPU time each.
Expect: docs/findings/depth.md.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs.ablations import depthbench_1m

FACTOR = 5
PLAN = {
  "baseline": "standard",
  "contrasts": (("lns-x5", "lns"), ("standard-x5", "standard"), ("lns-x5", "standard")),
  "margin": 0.0025,
  "seeds": (1, 2, 3, 4, 5),
  "stopping": "256,000 tokens of all arms with all five seeds",
}


def get_config(argument: str = "24,0.004") -> ConfigDict:
  layers, _, rate = argument.partition(",")
  c = depthbench_1m.get_config(layers)
  c.workdir = f"runs/lns_rate_{layers}"
  try:
    c.optim.learning_rate = float(rate)
  except ValueError:
    raise ValueError(f"the argument is {argument!r}: LAYERS,RATE, such as 24,0.004") from None
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  for name in ("standard", "lns"):
    yield name, {"model.residual.name": name}
    faster = {"optim.learning_rate": FACTOR * config.optim.learning_rate}
    yield f"{name}-x{FACTOR}", {"model.residual.name": name, **faster}
