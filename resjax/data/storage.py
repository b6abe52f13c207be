"""Built data on disk: names from fingerprints, one writer at a time, all or nothing."""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from absl import logging

from resjax.data import mirror

Progress = Callable[[str, int, int], None]
"""Called as progress(stage, done, total); total 0: not known."""


def silent(stage: str, done: int, total: int) -> None:
  """A `Progress` that shows nothing."""
  del stage, done, total


def fingerprint(*parts: Any) -> str:
  """Returns 12 hexadecimal digits that name the JSON-like `parts` (dataclasses allowed)."""
  canonical = json.dumps(parts, sort_keys=True, default=dataclasses.asdict)
  return hashlib.blake2b(canonical.encode(), digest_size=6).hexdigest()


@contextlib.contextmanager
def exclusive(root: Path) -> Iterator[None]:
  """Waits until no other process builds under `root`; a dead process holds nothing.

  Where files cannot be locked or written, it goes on without: what is built can still be read.
  """
  with contextlib.ExitStack() as stack:
    try:
      root.mkdir(parents=True, exist_ok=True)
      fcntl.flock(stack.enter_context(open(root / ".lock", "w")), fcntl.LOCK_EX)
    except OSError as error:
      logging.warning("%s cannot be locked (%s): let one process build at a time", root, error)
    yield


class ArrayRecordBuilder(tfds.core.ShardBasedBuilder, skip_registration=True):
  """A TFDS builder that writes ArrayRecord shard by shard, in order, without TensorFlow.

  `GeneratorBasedBuilder` holds a whole split in memory and spills through TensorFlow above 1 GB;
  this base holds one shard.

  Args:
    folder: where it is built; the records lie in `folder/NAME/VERSION`.
  """

  VERSION = tfds.core.Version("1.0.0")
  code_path = None  # nothing is downloaded, so no file of checksums lies beside the code

  def __init__(self, *, folder: Path):
    super().__init__(data_dir=folder, file_format="array_record")

  def _info_of(self, description: str, features: dict[str, Any]) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description=description,
      features=tfds.features.FeaturesDict(features),
      metadata=tfds.core.MetadataDict(),
    )

  def _log_download_bytes(self) -> None:
    """Keeps standard output to the caller: TFDS prints here."""

  def _log_download_done(self) -> None:
    """Keeps standard output to the caller: TFDS prints here."""


def built(folder: Path, cls: type[ArrayRecordBuilder]) -> Path:
  """Returns where the records of `cls` lie under `folder`; it exists if and only if complete."""
  return folder / cls.name / str(cls.VERSION)


def prepare(
  root: str, name: str, cls: type[ArrayRecordBuilder], make: Callable[[Path], Any]
) -> Path:
  """Builds what `make(folder)` describes unless it is there; returns where its records lie.

  TFDS writes into a folder beside the final one and renames it last. The caller holds
  `exclusive`, so that such a folder found here was left by a killed process.

  Args:
    root: `DataConfig.root`.
    name: of the folder, relative to the root.
    cls: of what `make` returns.
    make: takes the folder on this machine.
  """
  folder = mirror.local(root) / name
  path = built(folder, cls)
  if not mirror.fetch(root, name, path):
    make(folder).download_and_prepare()
    shutil.rmtree(folder / "downloads")  # TFDS makes it; nothing was downloaded
  mirror.publish(root, name)
  return path


def take(examples: Iterator[Any], count: int) -> Callable[[], Iterator[Any]]:
  """Returns a shard for TFDS: the next `count` of `examples` when it comes to be written."""
  return lambda: itertools.islice(examples, count)


def metadata(path: Path) -> dict[str, Any]:
  """Returns what a builder noted about the records at `path`."""
  return json.loads((path / "metadata.json").read_text())


def read(path: Path, split: str) -> Sequence[dict[str, Any]]:
  """Returns the records of `split` at `path`, with random access."""
  return tfds.builder_from_directory(path).as_data_source(split)
