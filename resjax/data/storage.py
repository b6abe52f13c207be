"""Built data on disk: their names, one writer at a time, and how they are read."""

import bisect
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from absl import logging

from resjax.base import Damaged, locations
from resjax.data import built, packing
from resjax.data.packing import PADDING

ROW_FORM = 1  # of rows that are built now
_QUIET_SECONDS = 1.0  # Nothing is said about waiting for a lock that takes no longer.
_POLL_SECONDS = 0.05

Progress = Callable[[str, int, int], None]
"""A function that a build calls as progress(stage, done, total); a total of 0 is not known."""


def silent(stage: str, done: int, total: int) -> None:
  """A `Progress` that shows nothing."""
  del stage, done, total


def fingerprint(*parts: Any) -> str:
  """Returns 12 hexadecimal digits that name the JSON-like `parts` (dataclasses allowed)."""
  canonical = json.dumps(parts, sort_keys=True, default=dataclasses.asdict)
  return hashlib.blake2b(canonical.encode(), digest_size=6).hexdigest()


def import_libraries() -> None:
  """Imports what builds and reads records.

  TFDS changes `__import__` for all threads while it is imported, so that another thread which
  imports then gets modules that are none. Whoever starts such a thread calls this first.
  """
  import grain  # noqa: F401
  import tensorflow_datasets  # noqa: F401


@contextlib.contextmanager
def exclusive(root: Path) -> Iterator[bool]:
  """Waits until no other process builds under `root`, and keeps others waiting while it is held.

  The lock of a process ends with the process. Where files cannot be locked or written, the caller
  goes on without a lock, since data that are already built can still be read. The value of the
  context is whether there is a lock.
  """
  locked = False
  with contextlib.ExitStack() as stack:
    try:
      root.mkdir(parents=True, exist_ok=True)
      _lock(stack.enter_context(locations.open_lock(root / ".lock")), root / ".lock")
      locked = True
    except OSError as error:
      logging.warning("%s cannot be locked (%s): let one process build at a time", root, error)
    yield locked


def _lock(file: IO[bytes], path: Path) -> None:
  """Locks a file, and says so if that takes longer than a moment."""
  end = time.monotonic() + _QUIET_SECONDS
  while time.monotonic() < end:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      time.sleep(_POLL_SECONDS)
    else:
      return
  logging.warning("waiting for another process, which builds data and holds %s", path)
  fcntl.flock(file, fcntl.LOCK_EX)


def row_features(seq_len: int, form: int) -> dict[str, Any]:
  """Returns the features of rows of T + 1 tokens, T = `seq_len`.

  Args:
    seq_len: T.
    form: 0: tokens alone, as earlier releases built rows; `ROW_FORM`: tokens with the marks of
      `packing`, and the bytes of text of their targets.
  """
  import tensorflow_datasets as tfds  # Imported here because it takes a third of a second.

  tokens = tfds.features.Tensor(shape=(seq_len + 1,), dtype=np.int32, encoding="bytes")
  return {"tokens": tokens, "bytes": tfds.features.Scalar(np.int32)} if form else {"tokens": tokens}


def text_features() -> dict[str, Any]:
  """Returns the features of documents."""
  import tensorflow_datasets as tfds

  return {"id": tfds.features.Text(), "text": tfds.features.Text()}


class Records:
  """The records of a split, with random access.

  Shards and numbers of records come from the manifest; what TFDS notes beside them is not read.
  ArrayRecord compares a checksum of each record with the record.

  Args:
    path: the folder of the records, KIND/NAME-FINGERPRINT/BUILDER/VERSION under a root.
    split: the split.

  Attributes:
    form: what rows hold, see `row_features`.

  Raises:
    ValueError: The manifest is damaged, or has no such split.
  """

  def __init__(self, path: Path, split: str):
    import grain
    import tensorflow_datasets as tfds

    folder = path.parents[1]
    try:
      facts = built.facts(folder)
    except Damaged as error:
      raise Damaged(
        f"{folder}: {error}; it was moved, deleted or altered: bring it back, or start the same "
        "command again, which builds anew what is missing"
      ) from None
    if split not in facts.splits:
      raise ValueError(f"{folder} has no split {split!r}; it has {', '.join(facts.splits)}")
    shards = facts.splits[split].shards
    files = [Path(locations.inside(folder, name, f"{folder}/manifest.json")) for name, _ in shards]
    self._shards = [_Shard(str(file), take=n) for file, (_, n) in zip(files, shards, strict=True)]
    self._ends = np.cumsum([shard.take for shard in self._shards]).tolist()
    self._source = grain.sources.ArrayRecordDataSource(self._shards)
    is_rows = facts.kind == built.ROWS
    features = row_features(facts.seq_len, facts.form) if is_rows else text_features()
    self._decode = tfds.features.FeaturesDict(features).deserialize_example_np
    self._vocab_size = facts.vocab_size if is_rows else 0
    self.form = facts.form

  def __len__(self) -> int:
    return self._ends[-1]

  def __getitem__(self, index: int) -> dict[str, Any]:
    """Returns the record with this number, its features by name.

    Raises:
      Damaged: It cannot be decoded, or is no row of tokens below V.
    """
    if not 0 <= index < len(self):
      raise IndexError(f"record {index} of {len(self)}")
    try:
      record = self._decode(self._source[index])
    except Exception as error:  # ArrayRecord, protobuf and NumPy each have their own
      raise self._damaged(index, " ".join(str(error).split())) from error
    if self._vocab_size:
      tokens = packing.numbers(record["tokens"]) if self.form else record["tokens"]
      if tokens.min() < PADDING or tokens.max() >= self._vocab_size:
        found = f"{tokens.min()} to {tokens.max()}"
        raise self._damaged(index, f"tokens are {found}, allowed: 0 to {self._vocab_size - 1}")
    return record

  def _damaged(self, index: int, reason: str) -> Damaged:
    number = bisect.bisect_right(self._ends, index)
    shard, start = self._shards[number], self._ends[number - 1] if number else 0
    return Damaged(
      f"{shard.filename}: record {index - start} is damaged ({reason}); start again: with "
      "config.data.verify='full' that builds its folder anew where the source is there"
    )


class _Shard(NamedTuple):
  """The records of a shard, in the form that ArrayRecord takes: `take` records after `skip`."""

  filename: str
  take: int
  skip: int = 0

  @property
  def examples_in_shard(self) -> int:
    return self.take


def read(path: Path, split: str) -> Records:
  """Returns the records of `split` in the folder `path`, with random access."""
  return Records(path, split)
