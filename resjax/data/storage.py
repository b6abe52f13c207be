"""Built data on disk: their names, one writer at a time, and how they are read."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from resjax import locations

Progress = Callable[[str, int, int], None]
"""A function that a build calls as progress(stage, done, total); a total of 0 is not known."""


def silent(stage: str, done: int, total: int) -> None:
  """A `Progress` that shows nothing."""
  del stage, done, total


def fingerprint(*parts: Any) -> str:
  """Returns 12 hexadecimal digits that name the JSON-like `parts` (dataclasses allowed)."""
  canonical = json.dumps(parts, sort_keys=True, default=dataclasses.asdict)
  return hashlib.blake2b(canonical.encode(), digest_size=6).hexdigest()


@contextlib.contextmanager
def exclusive(root: Path) -> Iterator[None]:
  """Waits until no other process builds under `root`, and keeps others waiting while it is held.

  The lock of a process ends with the process. Where files cannot be locked or written, the caller
  goes on without a lock, since data that are already built can still be read.
  """
  with contextlib.ExitStack() as stack:
    try:
      root.mkdir(parents=True, exist_ok=True)
      fcntl.flock(stack.enter_context(locations.open_lock(root / ".lock")), fcntl.LOCK_EX)
    except OSError as error:
      logging.warning("%s cannot be locked (%s): let one process build at a time", root, error)
    yield


def metadata(path: Path) -> dict[str, Any]:
  """Returns what a builder noted about the records in the folder `path`."""
  return json.loads((path / "metadata.json").read_text())


def read(path: Path, split: str) -> Sequence[dict[str, Any]]:
  """Returns the records of `split` in the folder `path`, with random access."""
  import tensorflow_datasets as tfds  # Imported here because it takes a third of a second.

  return tfds.builder_from_directory(path).as_data_source(split)
