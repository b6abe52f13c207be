"""GPT-2 124M on 10B tokens, the second of two stages: the claims of arXiv 2602.14760, confirmed.

The argument is what the first stage found with seed 0: the granularity of the best gate, the layer
and the alpha of the best cut, and the layer after which the next token emerges in `standard`.

  resjax sweep --config=ablations/cut_layer:gpt2_124m --seeds=0 \
    --config.data.corpora.web.source=FOLDER --print_commands
  resjax sweep --config=ablations/causal_shift_124m:token,10,0.5,8 \
    --config.data.corpora.web.source=FOLDER --print_commands

The first command explores: one seed of `standard`, 4 gates and 36 cuts, from which nothing follows
but what the second one asks. Its seeds are fresh, so that the choice of the best is no finding. The
second command writes its plan before the runs. Each printed command is one run.

Hardware: what configs/gpt2_124m.py says. Time: 41 runs, then 20 runs of 5.6 H100-hours each at an
assumed 40 % MFU, 230 and 112 hours (estimated there, not measured).
Expect: with a spread of 0.0015 nats over seeds (public runs of this size), 4 seeds show
differences of 0.0045 nats, 0.007 in the strictest step of Holm over 4 contrasts; 6 seeds would show
0.003 and 0.004.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import ablations

PLAN = {
  "baseline": "standard",
  "contrasts": (
    ("cut-last", "standard"),
    ("cut-emergence", "standard"),
    ("gate", "standard"),
    ("gate", "cut-best"),
  ),
  "metric": "loss",
  "split": "validation",
  "margin": 0.0005,
  "spread": 0.0015,
  "seeds": (1, 2, 3, 4),
  "stopping": "10B tokens of all arms with all four seeds",
}
_FORM = "GRANULARITY,LAYER,ALPHA,EMERGENCE, such as token,10,0.5,8"


def get_config(found: str = "token,10,0.5,8") -> ConfigDict:
  c = ablations.get_config("gpt2_124m")
  c.workdir = "runs/causal_shift_124m"
  gate, best, alpha, emergence = _parsed(found)
  c.model.residual.gate = {"granularity": gate}
  c.model.residual.attenuation = {"layers": (best, emergence), "alpha": alpha}
  c.train.eval_rows = 10_240  # 10M tokens
  return c


def _parsed(found: str) -> tuple[str, int, float, int]:
  try:
    gate, best, alpha, emergence = found.split(",")
    return gate, int(best), float(alpha), int(emergence)
  except ValueError:
    raise ValueError(f"the argument is {found!r}: {_FORM} is allowed") from None


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  best, emergence = config.model.residual.attenuation.layers
  yield "standard", {"model.residual.name": "standard"}
  yield "gate", {"model.residual.name": "gate"}
  yield "cut-best", ablations.cut(best, config.model.residual.attenuation.alpha)
  yield "cut-last", ablations.cut(-1, 0.5)
  yield "cut-emergence", ablations.cut(emergence, 0.5)
