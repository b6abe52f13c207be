"""A corpus as a TFDS data set: its documents without duplicates, in splits by hash."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from resjax.data import array_records, storage
from resjax.data.config import SPLITS, CorpusConfig, DataConfig, SettingNames
from resjax.data.sources import Source, open_source
from resjax.data.splits import PROGRESS_EVERY, SplitPlan, plan_splits


class TextCorpus(array_records.ArrayRecordBuilder, skip_registration=True):  # type: ignore[call-arg]
  """Documents {"id", "text"} of one source, in the order of the source.

  A build reads the source once to plan the splits, and once more for each split.

  Args:
    folder: the folder to build in.
    name: the name of the corpus.
    source: its documents.
    config: the fractions of the splits.
    progress: is told the numbers of documents read and written.
  """

  def __init__(
    self,
    *,
    folder: Path,
    name: str,
    source: Source,
    config: DataConfig,
    progress: storage.Progress = storage.silent,
  ):
    self._corpus, self._source, self._config = name, source, config
    self._progress = progress
    super().__init__(folder=folder)

  def _info(self) -> tfds.core.DatasetInfo:
    features = {"id": tfds.features.Text(), "text": tfds.features.Text()}
    return self._info_of("Documents of one corpus, without duplicates.", features)

  def _shard_iterators_per_split(self, dl_manager: Any) -> Mapping[str, Sequence[Any]]:
    del dl_manager
    plan = plan_splits(self._corpus, self._source, self._config, self._progress)
    self.info.metadata["dropped"] = plan.dropped
    self.info.metadata["splits"] = {
      split: {
        "documents": int(np.sum(plan.split == SPLITS.index(split))),
        "bytes": int(np.sum(plan.size[plan.split == SPLITS.index(split)])),
      }
      for split in self._config.splits
    }
    shards = {}
    for split in self._config.splits:
      examples = self._examples(plan, split)
      shards[split] = [array_records.take(examples, length) for length in plan.shards(split)]
    return shards

  def _examples(self, plan: SplitPlan, split: str) -> Iterator[tuple[int, dict[str, str]]]:
    wanted = SPLITS.index(split)
    total, done = int(np.sum(plan.split == wanted)), 0
    for number, document in enumerate(self._source.documents()):
      if number < len(plan.split) and plan.split[number] == wanted:
        if document.text is None or len(document.text.encode()) != plan.size[number]:
          raise ValueError(f"{document.id} of corpus {self._corpus} changed while it was read")
        done += 1
        if done % PROGRESS_EVERY == 0 or done == total:
          self._progress(f"writing {self._corpus} {split}", done, total)
        yield number, {"id": document.id, "text": document.text}
    if done != total:
      raise ValueError(f"corpus {self._corpus} lost documents while it was read; run again")


def identity(corpus: CorpusConfig, source: Source, config: DataConfig) -> str:
  """Returns the fingerprint of all that decides the records; the weight of a corpus does not."""
  fractions = [config.validation_fraction, config.test_fraction]
  version = str(TextCorpus.VERSION)
  return storage.fingerprint(version, corpus.source, source.identity, fractions)


def build(
  name: str, config: DataConfig, progress: storage.Progress = storage.silent
) -> tuple[str, Path]:
  """Builds the corpus called `name` of `config` unless it is built.

  Returns:
    The fingerprint of the corpus, and the folder of its records.
  """
  corpus = dict(config.corpora)[name]
  source = open_source(SettingNames.of_corpus(name), corpus)
  mark = identity(corpus, source, config)

  def make(folder: Path) -> TextCorpus:
    return TextCorpus(folder=folder, name=name, source=source, config=config, progress=progress)

  return mark, array_records.prepare(config.root, f"corpora/{name}-{mark}", TextCorpus, make)
