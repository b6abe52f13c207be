"""Reads checkpoints, also of a run that is going on and writes others."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import orbax.checkpoint as ocp
from etils import epath

from resjax.base import Damaged, LiteralPath, PyTree, checksums, locations, manifest, typed_json
from resjax.train.checkpoint.place import absolute

ARRAYS = "arrays"  # the item of a checkpoint that holds the checksums of the arrays of the others

DATA = "data"  # the item that holds the place in the data
JSON = "metadata"  # the file in which Orbax keeps an item that is JSON
# The beginnings of the names of files that Orbax reads as a whole, to describe arrays.
_DESCRIBING = ("_", "metadata", "array_metadatas")


# Seconds for which a checkpoint may be half deleted, and between two looks at it.
_PATIENCE, _POLL = 5.0, 0.05


class Replaced(ValueError):
  """A checkpoint was deleted while it was read."""


class _Array(TypedDict):
  """What a checkpoint keeps of an array."""

  dtype: str
  shape: list[int]
  checksum: str


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
  """Returns the shape of each parameter of a checkpoint by its path, without reading arrays.

  Raises:
    Replaced: it was deleted meanwhile.
    ValueError: the checkpoint is damaged.
  """
  folder = absolute(checkpoint)
  with _reading(folder):
    found = checksums.leaves(described(folder / "params"))
    return {path: tuple(leaf.shape) for path, leaf in found.items()}


def described(item: LiteralPath) -> PyTree:
  """Returns the names, dtypes, shapes and chunks of the arrays of an item of a checkpoint."""
  handler = ocp.StandardCheckpointHandler()
  try:
    return handler.metadata(item).tree
  finally:
    handler.close()


def restore_params(checkpoint: epath.PathLike, abstract: PyTree) -> PyTree:
  """Returns the parameters of a checkpoint.

  Args:
    checkpoint: the folder of the checkpoint.
    abstract: the shapes, dtypes and shardings of all of its parameters, or of some.

  Raises:
    Replaced: it was deleted meanwhile.
    ValueError: the checkpoint is damaged.
  """
  folder = absolute(checkpoint)
  with _reading(folder):
    manifest.check(folder, "params/")
    recorded = checksums_of(folder)
    with ocp.StandardCheckpointer() as checkpointer:
      params = checkpointer.restore(folder / "params", abstract)
    compare({"params": params}, recorded)
  return params


def checksums_of(checkpoint: epath.PathLike) -> checksums.Record:
  """Returns the checksums that the arrays of a checkpoint had when it was saved."""
  folder = absolute(checkpoint)
  manifest.check(folder, f"{ARRAYS}/")
  return recorded(folder)


def recorded(checkpoint: LiteralPath) -> checksums.Record:
  """Returns the checksums of arrays that a checkpoint holds, whose file is not checked.

  Raises:
    Damaged: the file is missing, or holds something else.
  """
  try:
    return typed_json.read(checkpoint / ARRAYS / JSON, dict[str, _Array])
  except (FileNotFoundError, ValueError) as error:
    raise Damaged(str(error)) from None


def compare(tree: PyTree, recorded: checksums.Record) -> None:
  """Raises Damaged where an array that was read is not the one that was saved."""
  found = checksums.record(tree)
  wrong = [path for path in found if found[path] != recorded.get(path)]
  if wrong:
    raise Damaged(f"{len(wrong)} arrays are not those that were saved, {wrong[0]} for one")


@contextlib.contextmanager
def _reading(folder: LiteralPath) -> Iterator[None]:
  """Turns what Orbax raises for a damaged checkpoint, or one that goes away, into one line."""
  try:
    _check_files(folder)
    yield
  except Exception as error:
    if _goes_away(folder):
      raise Replaced(
        f"checkpoint {folder} was deleted while it was read, as its trainer does when it has a "
        "newer one; give the workdir, which stands for its newest checkpoint, or keep more of them "
        "with config.checkpoint.keep_last"
      ) from None
    if not isinstance(error, Damaged | LookupError | TypeError | AttributeError | AssertionError):
      raise
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise ValueError(
      f"checkpoint {folder} is damaged ({reason}); bring it back from a copy, or run the command "
      "that trained it, which goes on from the one before it"
    ) from None


def _goes_away(folder: LiteralPath) -> bool:
  """Returns whether a checkpoint that could not be read is gone, or soon is, for a newer one."""
  end = time.monotonic() + _PATIENCE
  while folder.exists():
    # It may be gone since it was looked at, so it need not be among them.
    newer = folder.name.isdecimal() and saved_steps(folder.parent)[-1:] > [int(folder.name)]
    if not newer or time.monotonic() > end:
      return False
    time.sleep(_POLL)
  return True


def _check_files(folder: epath.Path) -> None:
  """Raises Damaged if Orbax would wait for a pipe, follow a link outside, or read too much."""
  if not locations.is_local(folder):
    return
  for place, folders, files in os.walk(folder):
    for name in (*folders, *files):
      path = Path(place, name)
      below = path.relative_to(folder).as_posix()
      try:
        locations.inside(Path(folder), below, "the name of a file")
        if name in folders:
          continue
        with locations.open_regular(path) as file:
          size = os.fstat(file.fileno()).st_size
      except FileNotFoundError:
        continue  # a partial file that got its name meanwhile; the manifest decides
      except (OSError, ValueError) as error:
        if manifest.is_outside(error):
          raise
        raise Damaged(str(error)) from None
      describes = any(part.startswith(_DESCRIBING) for part in Path(below).parts)
      if describes and size > typed_json.MOST_BYTES:
        raise Damaged(f"{below} has {size:,} bytes; at most {typed_json.MOST_BYTES:,} are read")
