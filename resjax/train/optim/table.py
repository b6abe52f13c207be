"""What the optimizer does with each parameter, decided by its path, never by its number of axes."""

import math
from collections.abc import Collection
from typing import NamedTuple

import jax

from resjax.base import PyTree, checksums
from resjax.train.optim.config import OptimizerConfig

_COMBINATOR = "combinator"  # the folder of its parameters
_DECAYED_LEAVES = ("kernel", "embedding")
_LOW_RANK = "norm_gates"  # has matrices that are too long and narrow for Muon


class Scaling(NamedTuple):
  """How many times as large a model is as the one that its learning rates were tuned for.

  Attributes:
    width: the ratio m of the widths D.
    depth: the ratio ℓ of the numbers of layers L.
  """

  width: float = 1.0
  depth: float = 1.0


SAME_SIZE = Scaling()


class ParameterRow(NamedTuple):
  """A parameter, and how the optimizer treats it.

  Attributes:
    path: its path, such as layers/attention/q_proj/kernel.
    shape: the shape of its array.
    update: adam, adam_layers or muon: the rule that updates it.
    decayed: whether it takes weight decay.
    lr_multiplier: a factor on its learning rate.
    update_multiplier: a factor on its update alone, not on its decay: the rate is multiplied by it
      and the decay divided.
  """

  path: str
  shape: tuple[int, ...]
  update: str
  decayed: bool
  lr_multiplier: float
  update_multiplier: float = 1.0


def parameter_rows(
  params: PyTree,
  config: OptimizerConfig,
  decayed_combinator_paths: Collection[str] = (),
  scaling: Scaling = SAME_SIZE,
) -> list[ParameterRow]:
  """Returns a row for each parameter, in the order of their paths.

  `update` is muon, with config.optim.name=muon, for a parameter that is named `kernel` and lies
  under `layers`: stacked matrices [L, d_in, d_out], or [L, E, d_in, d_out] of E experts, except the
  matrices of `norm_gates`, which are of low rank. It is adam for all others: embeddings, output
  head, norms, biases, and the combinator. With a `scaling`, parameters of the second kind under
  `layers` have adam_layers, whose eps is divided by m ℓ.

  `decayed` are the parameters that are named `kernel` or `embedding`, and parameters of the
  combinator that `decayed_combinator_paths` names.

  `lr_multiplier` is config.optim.combinator_lr_multiplier for the parameters of the combinator,
  times the factors that config.optim.combinator_lr_multipliers has for them, and 1 for all others.

  `update_multiplier` is for the matrices of the layers 1/m with adam, and m^-1/2 with muon, whose
  updates have a norm that grows as √D; it is 1 for all others.

  Args:
    params: the parameters, nested dicts of arrays.
    config: the settings of the optimizer.
    decayed_combinator_paths: full paths of parameters of the combinator, or of folders of them.
    scaling: the size of the model; default: that for which its rates were tuned.

  Raises:
    ValueError: a path of `decayed_combinator_paths`, or a name in
      config.optim.combinator_lr_multipliers, names no parameter.
  """
  leaves = checksums.leaves(params)
  paths = list(leaves)
  for folder in decayed_combinator_paths:
    # Optax also asks about a placeholder, which has no parameters and therefore no paths.
    if paths and not any(_lies_in(path, folder) for path in paths):
      raise ValueError(f"decayed_combinator_paths: {folder!r} names none of {', '.join(paths)}")
  if paths:
    inside = f"{_COMBINATOR}/"
    own = [path.removeprefix(inside) for path in paths if path.startswith(inside)]
    check_combinator_factors(config, own)
  return [
    _row(path, leaf.shape, config, decayed_combinator_paths, scaling)
    for path, leaf in leaves.items()
  ]


def check_combinator_factors(config: OptimizerConfig, paths: Collection[str]) -> None:
  """Raises a ValueError if config.optim.combinator_lr_multipliers names none of these parameters.

  Args:
    config: the settings of the optimizer.
    paths: the paths of the combinator's parameters, such as query.
  """
  for name in config.combinator_factors():
    if not any(_lies_in(path, name) for path in paths):
      raise ValueError(
        f"config.optim.combinator_lr_multipliers: the combinator has no parameter {name!r}; "
        f"allowed: {', '.join(paths) or 'none'}"
      )


def column(
  name: str,
  params: PyTree,
  config: OptimizerConfig,
  decayed_combinator_paths: Collection[str] = (),
  scaling: Scaling = SAME_SIZE,
) -> PyTree:
  """Returns one field of `parameter_rows`, in the structure of `params`."""
  rows = parameter_rows(params, config, decayed_combinator_paths, scaling)
  return jax.tree.unflatten(jax.tree.structure(params), [getattr(row, name) for row in rows])


def _row(
  path: str,
  shape: tuple[int, ...],
  config: OptimizerConfig,
  decayed: Collection[str],
  scaling: Scaling,
) -> ParameterRow:
  *folders, name = path.split("/")
  if _COMBINATOR in folders:
    is_decayed = any(_lies_in(path, folder) for folder in decayed)
    named = config.combinator_factors().items()
    factors = [factor for own, factor in named if _lies_in(path, f"{_COMBINATOR}/{own}")]
    multiplier = config.combinator_lr_multiplier * math.prod(factors)
    return ParameterRow(path, shape, "adam", is_decayed, multiplier)
  is_matrix = "layers" in folders and name == "kernel"
  update = "adam_layers" if "layers" in folders and scaling != SAME_SIZE else "adam"
  multiplier = 1 / scaling.width if is_matrix else 1.0
  if config.name == "muon" and is_matrix and _LOW_RANK not in folders:
    update, multiplier = "muon", multiplier**0.5
  return ParameterRow(path, shape, update, name in _DECAYED_LEAVES, 1.0, multiplier)


def _lies_in(path: str, folder: str) -> bool:
  return path == folder or path.startswith(f"{folder}/")
