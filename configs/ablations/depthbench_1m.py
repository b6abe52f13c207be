"""DepthBench's sweep of depth at a size for two CPU cores: ten designs, 6 to 48 layers, five seeds.

The argument is the number of layers: 6, 12, 24 (default) or 48, each a sweep of its own. The layers
of every shape have 1.02M or 1.04M parameters, so that width pays for depth; three heads and an MLP
of 8/3 of the width in all of them. What is held is the parameters without the embedding: it has
1,024 rows, 12 % of the layers' parameters at 6 layers and 4 % at 48, and is the output projection,
too, whose rank falls with the width.

  for layers in 6 12 24 48; do
    resjax sweep --config=ablations/depthbench_1m:$layers
  done
  resjax sweep --config=ablations/lns_rate:24,RATE
  .venv/bin/python -m docs.findings.depth runs

A stopped command goes on where it was, run by run; --only=ARM takes a piece of a sweep. RATE is
what the third sweep tuned for `standard` (plan.json). The last command keeps what was found.

The designs are those of configs/ablations/depthbench.py. Each has a rate of its own in each shape,
from the same grid for all: the best rate of a design moves with the width, and a rate that is tuned
in one shape would favour it in that one. Tuning has 100 steps and a seed of its own.

Planned before the runs, at a margin of 0.25 %, with the verdicts of docs/findings/depth.py:
  1. Does the order of designs change with depth? Yes if two designs stand in one order at 6 layers
     and in the other at 48, both for sure (Holm over all pairs); no if each pair of means that is
     reversed is within the margin in one of the two shapes for sure.
  2. Does LNS need its five-fold rate? configs/ablations/lns_rate.py.
  3. Is `hyper_connections` ahead of `mhc` when deep? By their contrast at 48 layers.
A sweep ends when all arms have all five seeds; nothing is left out but what diverged.

Hardware: 2 CPU cores, 1 GB of memory. Time: about 10 hours of CPU time in all: on one core a step
of `standard` takes 0.38 s at 6 layers and 0.6 at 48, of `mhc` 0.6 and 1.1, and a run 30 s besides.
Such small models gain nothing from a second core: `taskset -c 0` and `taskset -c 1` before two
processes with arms of their own (--only) halve the time. Rows are short, because scores of
attention are the largest arrays of narrow layers.
Expect: 256,000 tokens a run are a quarter of a token per parameter, where DepthBench has 20. So
this says how designs begin to train at a depth, and nothing about where they end.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import ablations
from configs.ablations import depthbench

SHAPES = {6: (120, 320), 12: (84, 224), 24: (60, 160), 48: (42, 112)}  # as in `depthbench`
PLAN = {
  "baseline": "standard",
  "contrasts": (
    *((arm, "standard") for arm, _ in depthbench.designs() if arm != "standard"),
    ("hyper_connections", "mhc"),
  ),
  "margin": 0.0025,
  "seeds": (1, 2, 3, 4, 5),
  "stopping": "256,000 tokens of all arms with all five seeds",
  "tuning": {
    "settings": {"optim.learning_rate": (0.5, 1.0, 2.0)},
    "steps": 100,
    "seed": 1000,
    "overrides": {"optim.warmup_steps": 10},
    "most_moves": 6,
  },
}


def get_config(layers: str = "24") -> ConfigDict:
  c = ablations.get_config("tiny")
  c.workdir = f"runs/depthbench_1m_{layers}"
  depthbench.set_shape(c, layers, SHAPES, heads=3)
  c.data.seq_len = 64
  c.data.tokenizer.update(vocab_size=1024, train_bytes=4_000_000)
  c.optim.update(learning_rate=4e-3, warmup_steps=25)
  c.train.update(steps=250, batch_size=16, eval_rows=512)
  c.checkpoint.update(every=125, keep_last=1)
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  yield from depthbench.designs()
