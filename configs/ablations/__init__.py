"""Sweeps: a config that all runs share, and the name and overrides of each run.

The first run of a sweep is its reference. A file here has two functions:

  get_config(size)  returns what all runs share; the size is `tiny` (default) or `gpt2_124m`
  sweep(config)     yields (name, overrides) for the config with the command line's overrides
"""

from collections.abc import Iterable, Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import base, gpt2_124m, tiny

GRANULARITIES = ("layer", "depth_mixture", "token", "channel")  # of gates; the first is the default
# `CURVES` of sweeps of cuts: the horizontal axis of the plot, and the setting that each line stands
# for. Runs without them are horizontal lines.
CURVES = ("model.residual.attenuation.layers", "model.residual.attenuation.alpha")


def get_config(size: str = "tiny") -> ConfigDict:
  """Returns `standard` in the size, with the defaults of every combinator."""
  sizes = {"tiny": short_tiny, "gpt2_124m": gpt2_124m.get_config}
  if size not in sizes:
    raise ValueError(f"size {size!r} is not known; choose one of {sorted(sizes)}")
  config = sizes[size]()
  config.model.residual = base.Residual({"name": "standard"})
  config.train.sample_tokens = 0
  return config


def short_tiny() -> ConfigDict:
  """Returns the tiny model with as many steps as 2 CPU cores take in a minute or two."""
  config = tiny.get_config()
  config.optim.warmup_steps = 10
  config.train.update(steps=80, batch_size=8, eval_every=0, alignment_every=0)
  return config


def set_kind(config: ConfigDict, kind: str) -> None:
  """Gives a config with kind `moe` 8 experts in each layer, of which 2 are as wide as its MLP."""
  if kind not in ("dense", "moe"):
    raise ValueError(f"argument {kind!r} is not known; choose dense or moe")
  if kind == "moe":
    config.workdir += "_moe"
    config.model.moe.update(num_experts=8, num_experts_per_tok=2)
    config.model.moe.expert_dim = config.model.mlp_dim // 2


def system(name: str, **options: Any) -> dict:
  """Returns the overrides that choose a combinator, with options that are not its defaults."""
  own = {f"model.residual.{name}.{key}": value for key, value in options.items()}
  return {"model.residual.name": name, **own}


def each_combinator() -> Iterator[tuple[str, dict]]:
  """Yields a run with every combinator of resjax and its defaults."""
  from resjax import combinators  # imports JAX, which a config need not wait for

  for name in combinators.names(shipped=True):
    yield name, system(name)


def systems() -> Iterator[tuple[str, dict]]:
  """Yields every system with its defaults: all combinators, then what goes with any of them."""
  yield from each_combinator()
  yield "short_swa", {"model.short_swa.window": 128}
  yield "value_residual", {"model.value_residual": "learned"}
  yield "value_residual_gated", {"model.value_residual": "gated"}
  yield "value_mixing", {"model.value_mixing": "depth"}


def gates(granularities: Iterable[str] = GRANULARITIES) -> Iterator[tuple[str, dict]]:
  """Yields runs with a learned gate, one for each granularity."""
  for granularity in granularities:
    yield f"gate-{granularity}", system("gate", granularity=granularity)


def cut(layer: int, alpha: float) -> dict:
  """Returns the overrides of a run that cuts the residual path at one layer."""
  return system("attenuation", layers=(layer,), alpha=alpha)


def cuts(config: ConfigDict, alphas: Iterable[float]) -> Iterator[tuple[str, dict]]:
  """Yields runs that cut the residual path at one layer, one for each layer and alpha."""
  for alpha in alphas:
    for layer in range(config.model.num_layers):
      yield f"cut-layer{layer}-alpha{alpha:g}", cut(layer, alpha)
