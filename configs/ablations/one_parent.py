"""Cuts and gates from one trained parent: what they change when nothing else differs.

The argument is the workdir of a run with `standard`, such as the 3,000 steps that docs/findings.md
trains.

  resjax sweep --config=ablations/one_parent:RUN --config.workdir=FOLDER

All arms start from the parent's parameters, with its data, rows per step and optimizer; its cosine
has ended, so they start again at a tenth of its peak rate. Seeds differ in the order of the data
alone. `unchanged` shows what training on brings, `cut-layerL-alpha0.5` and `cut-last` halve the
stream at both sites of a layer, and gates learn a factor, `gate-lr10` and `gate-lr100` at 10 and
100 times the rate of the other parameters. Without an argument the tiny model is trained from its
initial values.

Hardware: 2 CPU cores, for the parent of docs/findings.md. Time: 13 arms with 5 seeds, a minute a
run.
Expect: docs/findings.md.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import ablations, finetune
from configs.ablations import finetune_cuts

ALPHA = 0.5
MULTIPLIERS = (10, 100)
GATES = (
  *(f"gate-{granularity}" for granularity in ablations.GRANULARITIES),
  *(f"gate-lr{factor}" for factor in MULTIPLIERS),
)
PLAN = {
  "baseline": "unchanged",
  "contrasts": tuple((arm, "unchanged") for arm in ("cut-last", *GATES)),
  "seeds": (1, 2, 3, 4, 5),  # not the parent's 0, with which its first rows would come again
}
CURVES = ablations.CURVES


def get_config(folder: str = "") -> ConfigDict:
  c = finetune_cuts.get_config(folder)
  c.workdir = c.workdir.replace("finetune_cuts", "one_parent", 1)
  if folder:
    finetune.train_like_run(c, folder)
    c.optim.learning_rate /= 10
  c.optim.warmup_steps = 10
  c.train.update(steps=150, eval_rows=512)
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  yield "unchanged", {"model.residual.name": "standard"}
  *earlier, (_, last) = ablations.cuts(config, [ALPHA])
  yield from earlier
  yield "cut-last", last
  yield from ablations.gates()
  for factor in MULTIPLIERS:
    overrides = {"model.residual.name": "gate", "optim.combinator_lr_multiplier": float(factor)}
    yield f"gate-lr{factor}", overrides
