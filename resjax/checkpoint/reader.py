"""Reads checkpoints, also of a run that is going on and writes others."""

from pathlib import Path

import orbax.checkpoint as ocp
from etils import epath
from flax import nnx

from resjax import manifest
from resjax.checkpoint import checksums
from resjax.manifest import Damaged
from resjax.typing import PyTree

ARRAYS = "arrays"  # the item of a checkpoint that holds the checksums of the arrays of the others


def absolute(folder: epath.PathLike) -> epath.Path:
  """Returns an absolute path, as Orbax needs it; that of an object store is one already."""
  path = epath.Path(folder)
  return path if "://" in str(path) else epath.Path(Path(folder).absolute())


def saved_steps(folder: epath.PathLike) -> list[int]:
  """Returns the steps of the complete checkpoints in a folder, in order."""
  path = absolute(folder)
  found = ocp.path.step.standard_name_format().find_all(path) if path.is_dir() else []
  return sorted(step.step for step in found)


def newest(folder: epath.PathLike) -> epath.Path | None:
  """Returns the newest checkpoint in a folder of checkpoints; None if there is none."""
  steps = saved_steps(folder)
  return absolute(folder) / str(steps[-1]) if steps else None


def parameter_shapes(checkpoint: epath.PathLike) -> dict[str, tuple[int, ...]]:
  """Returns the shape of each parameter of a checkpoint by its path, without reading arrays."""
  with ocp.StandardCheckpointer() as checkpointer:
    tree = checkpointer.metadata(absolute(checkpoint) / "params").item_metadata.tree
  leaves = nnx.traversals.flatten_mapping(tree, sep="/")
  return {path: tuple(leaf.shape) for path, leaf in leaves.items()}


def restore_params(checkpoint: epath.PathLike, abstract: PyTree) -> PyTree:
  """Returns the parameters of a checkpoint.

  Args:
    checkpoint: the folder of the checkpoint.
    abstract: the shapes, dtypes and shardings of all of its parameters, or of some.

  Raises:
    ValueError: the checkpoint is damaged.
  """
  folder = absolute(checkpoint)
  try:
    manifest.check(folder, "params/")
    recorded = checksums_of(folder)
    with ocp.StandardCheckpointer() as checkpointer:
      params = checkpointer.restore(folder / "params", abstract)
    compare({"params": params}, recorded)
  except Damaged as error:
    raise ValueError(
      f"checkpoint {folder} is damaged ({error}); bring it back from a copy, or run the command "
      "that trained it, which goes on from the one before it"
    ) from None
  return params


def checksums_of(checkpoint: epath.PathLike) -> checksums.Record:
  """Returns the checksums that the arrays of a checkpoint had when it was saved."""
  folder = absolute(checkpoint)
  manifest.check(folder, f"{ARRAYS}/")
  with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
    return checkpointer.restore(folder / ARRAYS)


def compare(tree: PyTree, recorded: checksums.Record) -> None:
  """Raises Damaged where an array that was read is not the one that was saved."""
  found = checksums.record(tree)
  wrong = [path for path in found if found[path] != recorded.get(path)]
  if wrong:
    raise Damaged(f"{len(wrong)} arrays are not those that were saved, {wrong[0]} for one")
