"""Data sets in ArrayRecord files, built as a whole or not at all."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import tensorflow_datasets as tfds
from tensorflow_datasets.core import writer
from tensorflow_datasets.proto import tf_example_pb2

from resjax.base import LocalPath
from resjax.data import built, storage
from resjax.data.config import DataConfig


class _Info(tfds.core.DatasetInfo):
  """The description of a data set that is built here."""

  def initialize_from_bucket(self) -> None:
    """Asks no bucket of TFDS for it, for which TFDS would leave an empty folder in /tmp."""


class _Writer(writer.ExampleWriter):
  """Writes records whose bytes are the same in every process that builds them."""

  def write(self, path: Any, examples: Iterator[tuple[Any, bytes]]) -> Any:
    return super().write(path, ((key, _ordered(record)) for key, record in examples))


def _ordered(record: bytes) -> bytes:
  """Returns a record with its features in the order of their names.

  TFDS leaves the order to protobuf, which goes by where the process has its memory.
  """
  return tf_example_pb2.Example.FromString(record).SerializeToString(deterministic=True)


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

  @property
  def data_path(self) -> LocalPath:
    """The folder of the records, whose files TFDS lists and asks for their sizes."""
    return LocalPath(self.data_dir)

  def _info_of(self, description: str, features: dict[str, Any]) -> tfds.core.DatasetInfo:
    return _Info(
      builder=self,
      description=description,
      features=tfds.features.FeaturesDict(features),
      metadata=tfds.core.MetadataDict(),
    )

  def _example_writer(self) -> writer.ExampleWriter:
    return _Writer(file_format=self.info.file_format)

  def _log_download_bytes(self) -> None:
    """Prints nothing, where TFDS would print to the caller's standard output."""

  def _log_download_done(self) -> None:
    """Prints nothing, where TFDS would print to the caller's standard output."""


def records_folder(folder: Path, cls: type[ArrayRecordBuilder]) -> Path:
  """Returns the folder of the records of `cls` under `folder`."""
  return folder / cls.name / str(cls.VERSION)


def prepare(
  config: DataConfig,
  name: str,
  cls: type[ArrayRecordBuilder],
  make: Callable[[Path], ArrayRecordBuilder],
  progress: storage.Progress,
  **facts: int,
) -> Path:
  """Builds a data set unless an intact one exists; returns the folder of its records.

  Args:
    config: says where data are built, and how they are verified.
    name: the folder of the data set, KIND/NAME-FINGERPRINT.
    cls: the class of the builder.
    make: returns the builder for a folder on this machine.
    progress: is called in a comparison that takes long.
    **facts: more fields of `built.Facts`.
  """

  def fill(folder: Path) -> built.Facts:
    builder = make(folder)
    builder.download_and_prepare()
    shutil.rmtree(folder / "downloads")  # TFDS makes this folder although nothing is downloaded.
    splits = {split: _split_facts(builder, split, folder) for split in builder.info.splits}
    kind, mark = name.split("/")[0], name.rpartition("-")[2]
    dropped = builder.info.metadata.get("dropped", {})
    return built.Facts(kind, mark, splits, dropped, **facts)

  folder = built.prepare(config.root, name, config.verify, fill, progress)
  return records_folder(folder, cls)


def _split_facts(builder: ArrayRecordBuilder, split: str, folder: Path) -> built.SplitFacts:
  """Returns the facts of a split as written, after checking the number of records in its files."""
  info, shards = builder.info.splits[split], []
  paths = [records_folder(folder, type(builder)) / Path(name).name for name in info.filenames]
  for path, count in zip(paths, info.shard_lengths, strict=True):
    found = len(grain.sources.ArrayRecordDataSource(str(path)))
    if found != count:
      raise RuntimeError(f"{path} has {found} records of {count}")
    shards.append((path.relative_to(folder).as_posix(), count))
  return built.SplitFacts(dict(builder.info.metadata["splits"][split]), shards)


def take(examples: Iterator[Any], count: int) -> Callable[[], Iterator[Any]]:
  """Returns a shard for TFDS: when it is written, it takes the next `count` of `examples`."""
  return lambda: itertools.islice(examples, count)
