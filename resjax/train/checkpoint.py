"""Checkpoints of a run: train state and data iterator, written in the background."""

from pathlib import Path

import grain
import orbax.checkpoint as ocp
from flax import nnx

from resjax.train.state import TrainState
from resjax.typing import PyTree


class _Manager(ocp.CheckpointManager):
  """Orbax's manager, which leaves it to the loop to ask about preemption.

  Asked for a step, JAX's preemption service would take it for the loop's tick, see
  `resjax.train.interrupt.StopRequest`.
  """

  def reached_preemption(self, step: int) -> bool:
    del step
    return False


class Checkpoints:
  """The checkpoints of one workdir, newest last.

  Saving copies the state to the host and returns; writing goes on in the background and becomes
  visible as a whole or not at all. What a killed process left half-written is removed on start.

  Args:
    folder: where they lie; made when missing.
    keep_last: how many are kept.
  """

  def __init__(self, folder: Path, *, keep_last: int):
    self.folder = folder
    options = ocp.CheckpointManagerOptions(max_to_keep=keep_last, cleanup_tmp_directories=True)
    self._manager = _Manager(folder.absolute(), options=options)

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *exc) -> None:
    self.wait()
    self._manager.close()

  @property
  def latest(self) -> int | None:
    """Step of the newest checkpoint, or None."""
    return self._manager.latest_step()

  def save(self, step: int, state: TrainState, batches: grain.DatasetIterator) -> None:
    """Starts to save the state after `step` steps, and the iterator's place; once per step."""
    if step == self.latest:
      return
    args = ocp.args.Composite(
      params=ocp.args.StandardSave(state.params),
      optimizer=ocp.args.StandardSave(_rest(state)),
      data=grain.checkpoint.CheckpointSave(batches),
    )
    self._manager.save(step, args=args)

  def restore(self, abstract: TrainState, batches: grain.DatasetIterator) -> TrainState:
    """Returns the newest state, laid out like `abstract`, and moves the iterator to its place."""
    args = ocp.args.Composite(
      params=ocp.args.StandardRestore(abstract.params),
      optimizer=ocp.args.StandardRestore(_rest(abstract)),
      data=grain.checkpoint.CheckpointRestore(batches),
    )
    found = self._manager.restore(self.latest, args=args)
    return TrainState(params=found["params"], **found["optimizer"])

  def wait(self) -> None:
    """Returns when everything is on disk; raises what went wrong in the background."""
    self._manager.wait_until_finished()


def newest(folder: Path) -> Path | None:
  """Returns the newest checkpoint in a folder of them that a trainer may be writing to, or None."""
  steps = ocp.utils.checkpoint_steps(folder) if folder.is_dir() else []
  return folder.absolute() / str(max(steps)) if steps else None


def parameter_shapes(checkpoint: Path) -> dict[str, tuple[int, ...]]:
  """Returns path to shape of the parameters of a checkpoint, without reading them."""
  with ocp.StandardCheckpointer() as checkpointer:
    tree = checkpointer.metadata(checkpoint / "params").item_metadata.tree
  leaves = nnx.traversals.flatten_mapping(tree, sep="/")
  return {path: tuple(leaf.shape) for path, leaf in leaves.items()}


def restore_params(checkpoint: Path, abstract: PyTree) -> PyTree:
  """Returns the parameters of a checkpoint.

  Args:
    checkpoint: of `newest`.
    abstract: shapes, dtypes and shardings.
  """
  with ocp.StandardCheckpointer() as checkpointer:
    return checkpointer.restore(checkpoint / "params", abstract)


def _rest(state: TrainState) -> dict[str, PyTree]:
  """What only training needs, apart from the parameters, which others read too."""
  return {"step": state.step, "opt_state": state.opt_state}
