"""Sweeps: a config to start from, and the overrides of each run, named; the first is the reference.

get_config(size)  what all runs share: `tiny` (default) or `gpt2_124m`
sweep(config)     yields (name, overrides); sees the config after the command line's overrides
"""

from collections.abc import Iterable, Iterator

from ml_collections import ConfigDict

from configs import base, gpt2_124m, tiny

NAMES = tuple(name for name in base.residual() if name != "name")  # standard is the first


def get_config(size: str = "tiny") -> ConfigDict:
  """Returns `standard` in the size, with every combinator's options as in configs/base.py."""
  sizes = {"tiny": short_tiny, "gpt2_124m": gpt2_124m.get_config}
  if size not in sizes:
    raise ValueError(f"size {size!r} is not known; choose one of {sorted(sizes)}")
  config = sizes[size]()
  config.model.residual = base.residual()
  config.train.sample_tokens = 0
  return config


def short_tiny() -> ConfigDict:
  """The tiny model for as many steps as 2 CPU cores do in a minute or two."""
  config = tiny.get_config()
  config.optim.warmup_steps = 10
  config.train.update(steps=80, batch_size=8, eval_every=0, alignment_every=0)
  return config


def cuts(config: ConfigDict, alphas: Iterable[float]) -> Iterator[tuple[str, dict]]:
  """Yields the runs that cut the residual path at one layer, every layer × alpha."""
  for alpha in alphas:
    for layer in range(config.model.num_layers):
      yield (
        f"cut-layer{layer}-alpha{alpha:g}",
        {
          "model.residual.name": "attenuation",
          "model.residual.attenuation.layers": (layer,),
          "model.residual.attenuation.alpha": alpha,
        },
      )
