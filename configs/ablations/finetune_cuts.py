"""A short fine-tune of a trained model with its residual path cut at one layer, layer by layer.

The argument is a Hugging Face folder, or a run with `standard`, as in configs/finetune.py.

  resjax sweep --config=ablations/finetune_cuts:FOLDER \
    --config.data.corpora.stdlib.source=TEXT

`resjax intervene --hf=FOLDER --data=TEXT` shows what a cut costs without training. All
runs start from the same parameters, and those of a seed see the same batches. `standard` shows what
training alone brings, and `gate` what a learned factor for each layer and site finds; `gate-lr100`
learns it at 100 times the rate, and `gate-alone` too, while all else stands all but still. Without
an argument the tiny model is trained from its initial values.

Hardware: what the model needs. Time: 4 runs of 200 steps and one for each layer and alpha, times
the seeds; --only takes some of them.
Expect: docs/findings/real_models.md.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import ablations, finetune

ALPHAS = (0.5, 0.9)
STILL = 1e-6  # of the rate: what is left for all parameters but the gates
CURVES = ablations.CURVES
_NUM_LAYERS = ("num_hidden_layers", "n_layer")  # names of the setting in a config.json
_MOST_LAYERS = 10_000


def get_config(folder: str = "") -> ConfigDict:
  c = finetune.get_config(folder) if folder else ablations.get_config("tiny")
  if folder and c.model.num_layers is None:
    c.model.num_layers = _num_layers(folder)
  own = "runs/finetune_cuts_tiny"
  c.workdir = c.workdir.replace("finetune", "finetune_cuts", 1) if folder else own
  c.optim.warmup_steps = 20
  c.train.update(steps=200, eval_every=0, sample_tokens=0)
  return c


def _num_layers(folder: str) -> int | None:
  where, values = finetune.read_settings(folder)
  name = next((name for name in _NUM_LAYERS if name in values), None)
  if name is None:
    return None
  if type(values[name]) is not int or not 1 <= values[name] <= _MOST_LAYERS:
    raise ValueError(f"{where}: {name} is {values[name]!r}: 1..{_MOST_LAYERS} is allowed")
  return values[name]


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  yield "standard", {"model.residual.name": "standard"}
  rate, gate = config.optim.learning_rate, {"model.residual.name": "gate"}
  yield "gate", gate
  yield "gate-lr100", gate | {"optim.combinator_lr_multiplier": 100.0}
  alone = {"optim.learning_rate": rate * STILL, "optim.combinator_lr_multiplier": 100 / STILL}
  yield "gate-alone", gate | alone
  yield from ablations.cuts(config, ALPHAS)
