"""Data sets in ArrayRecord files, built as a whole or not at all."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from resjax.data import mirror


class ArrayRecordBuilder(tfds.core.ShardBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
  """A TFDS builder that writes ArrayRecord files shard by shard, in order, without TensorFlow.

  `GeneratorBasedBuilder` holds a whole split in memory and spills through TensorFlow above 1 GB;
  this base class holds one shard.

  Args:
    folder: the folder to build in; the records lie in `folder/NAME/VERSION`.
  """

  VERSION = tfds.core.Version("1.0.0")
  code_path = None  # Nothing is downloaded, so no file of checksums lies beside the code.

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
    """Prints nothing, where TFDS would print to the caller's standard output."""

  def _log_download_done(self) -> None:
    """Prints nothing, where TFDS would print to the caller's standard output."""


def records_folder(folder: Path, cls: type[ArrayRecordBuilder]) -> Path:
  """Returns the folder of the records of `cls` under `folder`, which exists once it is complete."""
  return folder / cls.name / str(cls.VERSION)


def prepare(
  root: str, name: str, cls: type[ArrayRecordBuilder], make: Callable[[Path], ArrayRecordBuilder]
) -> Path:
  """Builds a data set unless it is there, and returns the folder of its records.

  TFDS writes into a folder beside the final one and renames it last. The caller holds
  `storage.exclusive`, so such a folder was left by a process that was killed.

  Args:
    root: `DataConfig.root`.
    name: the folder of the data set, relative to the root.
    cls: the class of the builder.
    make: returns the builder for a folder on this machine.
  """
  folder = mirror.local(root) / name
  path = records_folder(folder, cls)
  if not mirror.fetch(root, name, path):
    make(folder).download_and_prepare()
    shutil.rmtree(folder / "downloads")  # TFDS makes this folder although nothing is downloaded.
  mirror.publish(root, name)
  return path


def take(examples: Iterator[Any], count: int) -> Callable[[], Iterator[Any]]:
  """Returns a shard for TFDS: when it is written, it takes the next `count` of `examples`."""
  return lambda: itertools.islice(examples, count)
