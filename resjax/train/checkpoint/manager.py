"""The checkpoints of a run: its state and its place in the data, written in the background."""

import contextlib
import dataclasses
import errno
import functools
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import grain
import jax
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from resjax.base import Damaged, PyTree, checksums, locations, manifest, processes
from resjax.train.checkpoint import identity, leaks, opening
from resjax.train.checkpoint.config import CheckpointConfig
from resjax.train.checkpoint.identity import Identity
from resjax.train.checkpoint.place import absolute
from resjax.train.checkpoint.reader import ARRAYS, compare, saved_steps
from resjax.train.checkpoint.schedule import SaveSchedule

_UNREADABLE = "unreadable-"  # the prefix of the name of a checkpoint that could not be opened
_NUMBERS = itertools.count()  # of the saves of this process; all processes count alike
_NEVER = 10**10  # seconds
_EXPLODED = 1e19  # the square of a parameter from here on is no fp32 number

State = TypeVar("State", bound=Any)  # a dataclass of pytrees of arrays, with a field `params`


class _Manager(ocp.CheckpointManager):
  """Orbax's manager, which does not ask JAX's preemption service whether a run is to stop.

  The training loop asks it after each tick (see `resjax.base.processes.signals.StopRequest`), and
  the service would take the question of the manager for another tick. What another process left
  half-written is gone once the manager is there; Orbax alone sees to that at the first save.

  Args:
    complete: is called in the background of every process with the step of a checkpoint that is in
      its place, before older ones are deleted; they stay where it raises.
  """

  def __init__(self, *args: Any, complete: Callable[[int], None], **options: Any):
    self._complete = complete
    super().__init__(*args, **options)
    self._maybe_await_cleanup_tmp_directory()

  def _finalize_checkpoint(self, step: int) -> None:
    super()._finalize_checkpoint(step)
    self._complete(step)

  def reached_preemption(self, step: int) -> bool:
    """Returns False: the training loop, not the manager, stops for a preemption."""
    del step
    return False


class Unreadable(ValueError):
  """A checkpoint was written and cannot be opened."""


class Checkpoints:
  """The checkpoints of one workdir; a context manager, which waits for the last one at its end.

  Saving copies the state to the host and returns. Writing goes on in the background, and the
  checkpoint appears as a whole or not at all. What a killed process left half-written is removed at
  the start of the next one. Beside the arrays a checkpoint holds their checksums, computed on the
  devices, the place in the data, and a manifest of its files, which says of which run and step it
  is. Before older ones are deleted it is opened as a reader would; one that cannot be opened is
  moved aside as unreadable-STEP, in the place of an earlier one of these. All processes make the
  same calls.

  Args:
    folder: the folder of the checkpoints, which is made where missing.
    config: says when to save, how many checkpoints to keep, and what to check.
    batch_size: the number of rows of a step over all processes; the place in the data is counted in
      such batches.
    say: is called with a line about each damaged checkpoint, and about each that cannot be opened.
    run: what checkpoints say of their run, but for the step; by default nothing.

  Attributes:
    opening_seconds: the time that this process has spent on opening new checkpoints.
  """

  def __init__(
    self,
    folder: epath.PathLike,
    config: CheckpointConfig,
    *,
    batch_size: int,
    say: Callable[[str], None] = print,
    run: Identity | None = None,
  ):
    self.folder = absolute(folder)
    self._run = run or Identity()
    self.schedule = SaveSchedule(config)
    self._config, self._batch_size, self._say = config, batch_size, say
    self._last = self.latest  # the step that needs no saving; it is the same in all processes
    self._saving: int | None = None
    self.opening_seconds = 0.0
    policies = ocp.checkpoint_managers.preservation_policy
    kept = [policies.LatestN(config.keep_last)]
    if config.keep_every:
      kept.append(policies.EveryNSteps(config.keep_every))
    leaks.stop_counting_bytes()
    self._manager = _Manager(
      self.folder,
      complete=self._complete,
      options=ocp.CheckpointManagerOptions(
        preservation_policy=policies.AnyPreservationPolicy(kept),
        cleanup_tmp_directories=True,
        async_options=ocp.AsyncOptions(
          # Orbax measures by the time of day, which may jump; the watchdog tells of what hangs.
          timeout_secs=_NEVER,
          post_finalization_callback=self._list_files,
          # In the background it would take minutes to notice that a folder cannot be made.
          create_directories_asynchronously=False,
        ),
      ),
    )

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *exc: object) -> None:
    try:
      self.wait()
    finally:
      self._manager.close()

  @property
  def latest(self) -> int | None:
    """The step of the newest checkpoint that is on disk; None if there is none."""
    return max(saved_steps(self.folder), default=None)

  def last_words(self) -> str:
    """Returns in words the checkpoint that the next process will start from, once it is on disk."""
    self._settle()
    if self.latest is None:
      return "no checkpoint is there, so the same command starts anew"
    return f"the checkpoint of step {self.latest} is the last one: the same command goes on from it"

  def due(self, step: int) -> bool:
    """Returns whether to save after a step; all processes ask after the same steps.

    Raises:
      ValueError: the last save failed, other than by what cannot be opened.
    """
    if self._saving is not None and not self._manager.is_saving_in_progress():
      self._settle()
    return self.schedule.due(step)

  def save(self, step: int, state: Any, batches: grain.DatasetIterator) -> None:
    """Begins to save a state and the place in the data, unless that of this step is saved already.

    Args:
      step: the number of finished steps.
      state: a dataclass of pytrees of arrays; its field `params` is saved as an item of its own,
        because other programs read the parameters alone.
      batches: the iterator over the data, whose place is saved.

    Raises:
      ValueError: this save or the last one failed, or the state holds values that are not finite;
        such a state is not saved, because it would take the place of a good one.
    """
    if step == self._last:
      return
    self._settle()
    items = _items(state)
    if bad := _not_finite(items):
      raise ValueError(
        f"the state after step {step} is not saved: {_count(bad)} values that are not finite; "
        f"lower config.optim.learning_rate; {self.last_words()}"
      )
    place = {"batch_size": self._batch_size, "iterator": batches.get_state()}
    args = ocp.args.Composite(
      **{name: ocp.args.StandardSave(tree) for name, tree in items.items()},
      **{ARRAYS: ocp.args.JsonSave(checksums.record(items)), "data": ocp.args.JsonSave(place)},
    )
    self.schedule.saved(step)
    self._saving = self._last = step
    with self._failing():
      if locations.is_local(self.folder) and not self.folder.is_dir():
        # Orbax would make another one, without the records of the run.
        raise FileNotFoundError(errno.ENOENT, "it was moved or deleted", str(self.folder))
      self._manager.save(step, args=args, force=True)

  def wait(self) -> None:
    """Returns when everything is on disk.

    Raises:
      ValueError: the last save failed, or its checkpoint cannot be opened.
    """
    if self._saving is None:
      return
    with self._failing():
      self._manager.wait_until_finished()
    self._saving = None
    leaks.give_back_freed_memory()

  def _settle(self) -> None:
    """Waits as `wait` does, and says what cannot be opened: the run goes on to its next save."""
    try:
      self.wait()
    except Unreadable as error:
      self._say(f"{error}; the run goes on")

  @contextlib.contextmanager
  def _failing(self) -> Iterator[None]:
    """Turns any error of a save into a ValueError of one line, and forgets the failed save."""
    try:
      yield
    except Exception as error:
      step, self._saving, self._last = self._saving, None, None
      if processes.lost(error):  # nobody else is there to agree on anything
        raise
      self._manager.reload()
      last = f"that of step {self.latest} is the last one" if self.latest else "there is none"
      if isinstance(error, Unreadable):
        raise Unreadable(f"the checkpoint of step {step} {error}; {last}") from error
      reason, way = _first_line(error), locations.way_out(error)
      raise ValueError(
        f"the checkpoint of step {step} was not written to {self.folder} ({reason}); {last}; "
        f"{f'{way}, and ' if way else ''}the same command goes on"
      ) from error

  def _list_files(self) -> None:
    """Writes the manifest; runs in the background of process 0, before a checkpoint appears."""
    final = self.folder / str(self._saving)
    path_class = ocp.path.atomicity_defaults.get_default_temporary_path_class(final)
    manifest.write(path_class.from_final(final).get(), self._facts(), root=False)

  def _complete(self, step: int) -> None:
    """Raises Unreadable in all processes where process 0 cannot open the checkpoint of a step."""
    name = f"opened/{next(_NUMBERS)}"
    if problem := processes.first(name, functools.partial(self._opening_problem, step)):
      raise Unreadable(problem)

  def _opening_problem(self, step: int) -> str | None:
    """Completes the manifest of a checkpoint and opens it; returns a reason if that fails."""
    folder, start = self.folder / str(step), time.perf_counter()
    try:
      manifest.write(folder, self._facts())
      opening.check(folder)
      return None
    except Exception as error:
      reason = f"was written and cannot be read ({_first_line(error)})"
    finally:
      self.opening_seconds += time.perf_counter() - start
    try:
      for earlier in self.folder.iterdir():
        if re.fullmatch(rf"{_UNREADABLE}\d+", earlier.name):
          earlier.rmtree()
      place = folder.rename(self.folder / f"{_UNREADABLE}{step}")
      return f"{reason}; what is left of it is now {place}"
    except OSError as error:
      return f"{reason}, nor moved ({_first_line(error)})"

  def _facts(self) -> dict[str, Any]:
    assert self._saving is not None
    return self._run.of_step(self._saving).facts()

  def restore(self, abstract: State, batches: grain.DatasetIterator) -> tuple[int, State]:
    """Reads the newest checkpoint that is not damaged, and moves the iterator to its place.

    Newer ones, which are damaged, are reported and renamed to damaged-STEP, so that their steps can
    be saved again while what is left of them is kept.

    Args:
      abstract: the shapes, dtypes and shardings of the state, for any mesh and number of processes.
      batches: the iterator over the data, with the batch size that was saved.

    Returns:
      The step of the checkpoint, and its state with the shardings of `abstract`.

    Raises:
      ValueError: the checkpoint does not fit, or is of another run or step; or it is damaged or
        holds values that are not finite, and config.checkpoint.strict is set or there is no other
        one.
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
    self._check_identity(step)
    small = {name: ocp.args.JsonRestore() for name in (ARRAYS, "data")}
    notes = self._manager.restore(step, args=ocp.args.Composite(**small))
    differences = checksums.differences(notes[ARRAYS], items)
    self._check_fit(step, notes["data"]["batch_size"], differences)
    args = {name: ocp.args.StandardRestore(tree) for name, tree in items.items()}
    found = self._manager.restore(step, args=ocp.args.Composite(**args))
    found = {name: found[name] for name in items}
    if self._config.verify:
      compare(found, notes[ARRAYS])
    if bad := _not_finite(found):
      raise Damaged(f"{_count(bad)} values that are not finite")
    state = dataclasses.replace(abstract, params=found["params"], **found["optimizer"])
    return state, notes["data"]["iterator"]

  def _check_identity(self, step: int) -> None:
    folder = self.folder / str(step)
    found = identity.misplaced(folder, self._run.run)
    if found is None:
      return
    wrong = [f"its folder says step {step}"] * (found.step != step)
    wrong += [f"this run is {self._run.run}"] * (self._run.run not in (None, found.run))
    raise ValueError(
      f"{folder} is {found}, but {' and '.join(wrong)}; bring back what belongs there, or move it "
      "elsewhere, and the same command goes on from the checkpoint before it; to start from its "
      "parameters, set config.train.init_from in another config.workdir"
    )

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


def _not_finite(items: Mapping[str, PyTree]) -> list[str]:
  """Returns the paths of the arrays that no run should go on from."""
  largest = {"params": _EXPLODED, "optimizer": math.inf}
  return [
    f"{name}/{path}"
    for name, tree in items.items()
    for path in checksums.not_finite(tree, largest[name])
  ]


def _first_line(error: Exception) -> str:
  return (str(error).splitlines() or [type(error).__name__])[0]


def _count(paths: Sequence[str]) -> str:
  more = f" and {len(paths) - 1} more arrays have" if len(paths) > 1 else " has"
  return f"{paths[0]}{more}"


def _items(state: Any) -> dict[str, PyTree]:
  """Returns the items of a checkpoint: the parameters, which others read too, and all the rest."""
  rest = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
  return {"params": rest.pop("params"), "optimizer": rest}
