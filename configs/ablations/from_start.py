"""Cuts and gates from the first step on, in decoders of 12 layers, each with its own tuned rate.

  resjax sweep --config=ablations/from_start

`one_parent` and `finetune_cuts` change a model that was trained without: here all arms train from
their own initial values, which differ by seed, on the same batches per seed and as many tokens.
The rate of each arm is tuned on a seed that no comparison has. `cut-layer8-alpha0.5` halves the
stream where the next token emerges in pretrained models, two thirds down; `cut-last` does it in the
last layer, `cut-last-alpha0.9` attenuates it there by a tenth per sublayer. Gates learn a factor
per layer or per token, `gate-lr10` at ten times the rate of the other parameters.

Hardware: 2 CPU cores, 1 GB of memory. Time: 21 runs of tuning and more where a grid grows, then 7
arms with 5 seeds; about a minute and a half a run.
Expect: docs/findings.md.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import ablations
from configs.ablations import compare

PLAN = {
  "baseline": "standard",
  "seeds": (1, 2, 3, 4, 5),
  "stopping": "512,000 tokens of all arms with all five seeds",
  "tuning": {
    "settings": {"optim.learning_rate": (0.5, 1.0, 2.0)},
    "steps": 250,
    "seed": 1000,
  },
}


def get_config() -> ConfigDict:
  c = compare.get_config()
  c.workdir = "runs/from_start"
  c.model.num_layers = 12
  c.train.update(steps=500, eval_rows=256)
  c.checkpoint.every = 250
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  last = config.model.num_layers - 1
  yield "standard", {"model.residual.name": "standard"}
  yield "cut-layer8-alpha0.5", ablations.cut(8, 0.5)
  yield "cut-last-alpha0.5", ablations.cut(last, 0.5)
  yield "cut-last-alpha0.9", ablations.cut(last, 0.9)
  yield "gate-layer", {"model.residual.name": "gate"}
  yield "gate-token", ablations.system("gate", granularity="token")
  yield "gate-lr10", {"model.residual.name": "gate", "optim.combinator_lr_multiplier": 10.0}
