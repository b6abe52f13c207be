"""What the optimizer does with each parameter: one table, by path, never by number of axes."""

from collections.abc import Collection
from typing import NamedTuple

import jax

from resjax.optim.config import OptimizerConfig
from resjax.typing import PyTree

_DECAYED_LEAVES = ("kernel", "embedding")


class ParameterRow(NamedTuple):
  """One parameter, as the table of parameters shows it.

  Attributes:
    path: such as layers/attention/q_proj/kernel.
    shape: of the array.
    update: adam | muon.
    decayed: whether it takes weight decay.
    lr_multiplier: factor on the learning rate.
  """

  path: str
  shape: tuple[int, ...]
  update: str
  decayed: bool
  lr_multiplier: float


def parameter_rows(
  params: PyTree, config: OptimizerConfig, decayed_combinator_paths: Collection[str] = ()
) -> list[ParameterRow]:
  """Returns the table.

  `update`         with config.optim.name = muon, muon for what is named `kernel` under `layers`
                   (stacked matrices [L, d_in, d_out]); adam for all else: embeddings, output
                   head, norms, biases, combinator.
  `decayed`        what is named `kernel` or `embedding`; of a combinator, what
                   `decayed_combinator_paths` names.
  `lr_multiplier`  config.optim.combinator_lr_multiplier for parameters of a combinator, else 1.

  Args:
    params: nested dicts of arrays.
    config: of the optimizer.
    decayed_combinator_paths: full paths of parameters of a combinator, or of folders of them.

  Raises:
    ValueError: one of `decayed_combinator_paths` names no parameter.
  """
  leaves = jax.tree_util.tree_leaves_with_path(params)
  paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
  for folder in decayed_combinator_paths:
    # Optax also asks about a placeholder, which has no parameters.
    if paths and not any(_lies_in(path, folder) for path in paths):
      raise ValueError(f"decayed_combinator_paths: {folder!r} names none of {', '.join(paths)}")
  return [
    _row(path, leaf.shape, config, decayed_combinator_paths)
    for path, (_, leaf) in zip(paths, leaves, strict=True)
  ]


def column(
  name: str,
  params: PyTree,
  config: OptimizerConfig,
  decayed_combinator_paths: Collection[str] = (),
) -> PyTree:
  """Returns one field of `parameter_rows`, in the structure of `params`."""
  rows = parameter_rows(params, config, decayed_combinator_paths)
  return jax.tree.unflatten(jax.tree.structure(params), [getattr(row, name) for row in rows])


def _row(path: str, shape, config: OptimizerConfig, decayed: Collection[str]) -> ParameterRow:
  *folders, name = path.split("/")
  if "combinator" in folders:
    is_decayed = any(_lies_in(path, folder) for folder in decayed)
    return ParameterRow(path, shape, "adam", is_decayed, config.combinator_lr_multiplier)
  is_matrix = "layers" in folders and name == "kernel"
  update = "muon" if config.name == "muon" and is_matrix else "adam"
  return ParameterRow(path, shape, update, name in _DECAYED_LEAVES, 1.0)


def _lies_in(path: str, folder: str) -> bool:
  return path == folder or path.startswith(f"{folder}/")
