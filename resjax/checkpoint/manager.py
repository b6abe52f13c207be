"""Checkpoints of a run: train state and place in the data, written in the background."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grain
import jax
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from resjax.checkpoint import checksums, manifest
from resjax.checkpoint.config import CheckpointConfig
from resjax.checkpoint.manifest import Damaged
from resjax.checkpoint.reader import ARRAYS, absolute, compare, saved_steps
from resjax.checkpoint.schedule import SaveSchedule
from resjax.typing import PyTree

State = TypeVar("State")  # a dataclass of pytrees of arrays, one field of which is `params`


class _Manager(ocp.CheckpointManager):
  """Orbax's manager, which leaves it to the loop to ask about preemption.

  Asked for a step, JAX's preemption service would take it for the loop's tick, see
  `resjax.processes.signals.StopRequest`.
  """

  def reached_preemption(self, step: int) -> bool:
    """Returns False."""
    del step
    return False


class Checkpoints:
  """The checkpoints of one workdir, newest last.

  Saving copies the state to the host and returns; writing goes on in the background and becomes
  visible as a whole or not at all. What a killed process left half-written is removed on start.
  Beside the arrays a checkpoint holds their checksums, taken on the devices; the place in the
  data; and a list of its files. All processes make the same calls.

  Args:
    folder: where they lie; made when missing.
    config: when to save, how many to keep, what to check.
    batch_size: rows of a step over all processes, of which the place in the data is a multiple.
    say: takes a line about what was found damaged.
  """

  def __init__(
    self,
    folder: epath.PathLike,
    config: CheckpointConfig,
    *,
    batch_size: int,
    say: Callable[[str], None] = print,
  ):
    self.folder = absolute(folder)
    self.schedule = SaveSchedule(config)
    self._config, self._batch_size, self._say = config, batch_size, say
    self._last = self.latest  # step that needs no saving; the same on all processes
    self._saving: int | None = None
    policies = ocp.checkpoint_managers.preservation_policy
    kept = [policies.LatestN(config.keep_last)]
    if config.keep_every:
      kept.append(policies.EveryNSteps(config.keep_every))
    self._manager = _Manager(
      self.folder,
      options=ocp.CheckpointManagerOptions(
        preservation_policy=policies.AnyPreservationPolicy(kept),
        cleanup_tmp_directories=True,
        async_options=ocp.AsyncOptions(
          post_finalization_callback=self._list_files,
          # In the background, a folder that cannot be made is noticed after minutes.
          create_directories_asynchronously=False,
        ),
      ),
    )

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *exc) -> None:
    try:
      self.wait()
    finally:
      self._manager.close()

  @property
  def latest(self) -> int | None:
    """Step of the newest checkpoint that is on disk, or None."""
    return max(saved_steps(self.folder), default=None)

  def due(self, step: int) -> bool:
    """Returns whether to save after a step; all processes ask, after the same steps.

    Raises:
      ValueError: the last save went wrong.
    """
    if self._saving is not None and not self._manager.is_saving_in_progress():
      self.wait()
    return self.schedule.due(step)

  def save(self, step: int, state: Any, batches: grain.DatasetIterator) -> None:
    """Starts to save the state after `step` steps, and the iterator's place; once per step.

    Args:
      step: number of finished steps.
      state: a dataclass of pytrees of arrays; its field `params` is saved as an item of its own,
        because other programs read the parameters alone.
      batches: the iterator whose place is saved.

    Raises:
      ValueError: this save or the last one went wrong.
    """
    if step == self._last:
      return
    self.wait()
    items = _items(state)
    place = {"batch_size": self._batch_size, "iterator": batches.get_state()}
    args = ocp.args.Composite(
      **{name: ocp.args.StandardSave(tree) for name, tree in items.items()},
      **{ARRAYS: ocp.args.JsonSave(checksums.record(items)), "data": ocp.args.JsonSave(place)},
    )
    self.schedule.saved(step)
    self._saving = self._last = step
    with self._failing():
      self._manager.save(step, args=args, force=True)

  def wait(self) -> None:
    """Returns when everything is on disk.

    Raises:
      ValueError: the last save went wrong.
    """
    if self._saving is None:
      return
    with self._failing():
      self._manager.wait_until_finished()
      if jax.process_index() == 0:
        manifest.write(self.folder / str(self._saving), root=True)
    self._saving = None

  @contextlib.contextmanager
  def _failing(self) -> Iterator[None]:
    """Makes one line of whatever goes wrong in a save; what is on disk counts, nothing else."""
    try:
      yield
    except Exception as error:
      step, self._saving, self._last = self._saving, None, None
      self._manager.reload()
      reason = (str(error).splitlines() or [type(error).__name__])[0]
      last = f"that of step {self.latest} is the last one" if self.latest else "there is none"
      raise ValueError(
        f"the checkpoint of step {step} was not written ({reason}); {last}; make room in "
        f"{self.folder}, or make it writable, and the same command goes on"
      ) from error

  def _list_files(self) -> None:
    """Runs in the background of process 0 when all is written, before it becomes visible."""
    final = self.folder / str(self._saving)
    path_class = ocp.path.atomicity_defaults.get_default_temporary_path_class(final)
    manifest.write(path_class.from_final(final).get(), root=False)

  def restore(self, abstract: State, batches: grain.DatasetIterator) -> tuple[int, State]:
    """Returns the newest good checkpoint, and moves the iterator to its place.

    Newer ones that are damaged are named and renamed to damaged-STEP, so that their steps can be
    saved again and nothing is lost that could still be of use.

    Args:
      abstract: shapes, dtypes and shardings; any mesh and number of processes.
      batches: iterator of the batch size that was saved.

    Returns:
      its step, and its state laid out like `abstract`.

    Raises:
      ValueError: it does not fit; it is damaged and config.checkpoint.strict; none is good.
    """
    damaged: dict[int, str] = {}
    for step in sorted(saved_steps(self.folder), reverse=True):
      try:
        state, place = self._read(step, abstract)
      except Damaged as error:
        damaged[step] = str(error)
        if self._config.strict:
          break
        continue
      self._set_aside(damaged, step)
      batches.set_state(place)
      self._last = step
      return step, state
    found = "; ".join(f"step {step}: {reason}" for step, reason in damaged.items())
    if self._config.strict:
      raise ValueError(
        f"the newest checkpoint in {self.folder} is damaged ({found}); bring it back from a copy, "
        "or set config.checkpoint.strict=False to go on from the one before it"
      )
    raise ValueError(
      f"no checkpoint in {self.folder} is good ({found}); bring one back from a copy, or choose "
      "another config.workdir to start anew"
    )

  def _read(self, step: int, abstract: State) -> tuple[State, Any]:
    folder, items = self.folder / str(step), _items(abstract)
    manifest.check(folder, contents=self._config.verify)
    small = {name: ocp.args.JsonRestore() for name in (ARRAYS, "data")}
    notes = self._manager.restore(step, args=ocp.args.Composite(**small))
    differences = checksums.differences(notes[ARRAYS], items)
    self._check_fit(step, notes["data"]["batch_size"], differences)
    args = {name: ocp.args.StandardRestore(tree) for name, tree in items.items()}
    found = self._manager.restore(step, args=ocp.args.Composite(**args))
    found = {name: found[name] for name in items}
    if self._config.verify:
      compare(found, notes[ARRAYS])
    state = dataclasses.replace(abstract, params=found["params"], **found["optimizer"])
    return state, notes["data"]["iterator"]

  def _check_fit(self, step: int, batch_size: int, differences: list[str]) -> None:
    if batch_size != self._batch_size:
      raise ValueError(
        f"checkpoint {step} in {self.folder} counts batches of {batch_size} rows; "
        f"config.train.batch_size={self._batch_size} would read other data: set it back, or start "
        "a new run from these parameters with config.train.init_from"
      )
    if differences:
      more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
      raise ValueError(
        f"checkpoint {step} in {self.folder} does not fit: {'; '.join(differences[:3])}{more}; set "
        "config.model and config.optim as they were, or choose another config.workdir"
      )

  def _set_aside(self, damaged: dict[int, str], good: int) -> None:
    for step, reason in damaged.items():
      place = self.folder / f"damaged-{step}"
      self._say(
        f"checkpoint {step} is damaged ({reason}); going on from checkpoint {good}; what is left "
        f"of it is now {place}"
      )
      if jax.process_index() == 0:
        if place.exists():
          place.rmtree()
        (self.folder / str(step)).rename(place)
    if damaged:
      multihost_utils.sync_global_devices("damaged checkpoints set aside")
      self._manager.reload()


def _items(state: Any) -> dict[str, PyTree]:
  """Returns the parts of a state; the parameters apart from all else, as others read them too."""
  rest = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
  return {"params": rest.pop("params"), "optimizer": rest}
