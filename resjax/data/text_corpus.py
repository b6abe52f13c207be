"""A corpus as a TFDS dataset: documents without duplicates, in splits by hash."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from resjax.data import storage
from resjax.data.config import SPLITS, CorpusConfig, DataConfig
from resjax.data.sources import Source, open_source

_SHARD_BYTES = 64 << 20  # of text; one shard is in memory while it is written
_DROPPED = -1
_EVERY = 256  # documents between two calls of progress


@dataclasses.dataclass(frozen=True)
class Plan:
  """What becomes of each document of a source.

  Attributes:
    split: [documents read], index into `SPLITS`, or -1: dropped.
    size: [documents read], bytes of UTF-8.
    dropped: reason to count: `duplicate`, `empty`, `undecodable`.
  """

  split: np.ndarray
  size: np.ndarray
  dropped: dict[str, int]

  def shards(self, split: str) -> list[int]:
    """Returns the number of documents in each shard of `split`."""
    ends = np.cumsum(self.size[self.split == SPLITS.index(split)])
    lengths, start = [], 0
    while start < len(ends):
      full = (ends[start - 1] if start else 0) + _SHARD_BYTES
      stop = min(int(np.searchsorted(ends, full)) + 1, len(ends))
      lengths.append(stop - start)
      start = stop
    return lengths


def make_plan(
  name: str, source: Source, config: DataConfig, progress: storage.Progress = storage.silent
) -> Plan:
  """Reads the source once and decides the split of each document.

  A document's place in [0, 1) is the hash of its text: below `test_fraction` it is test, then
  validation, then train; adding documents moves no other. Only where that leaves a split empty
  do its nearest neighbours move, so that each split has a document. The first of exact duplicates
  is kept. Memory: about 100 bytes per document.

  Raises:
    ValueError: fewer documents than splits.
  """
  seen: set[bytes] = set()
  places, sizes = [], []
  dropped = dict.fromkeys(("duplicate", "empty", "undecodable"), 0)
  for number, document in enumerate(source.documents()):
    place, size = float(_DROPPED), 0
    if document.text is None:
      dropped["undecodable"] += 1
    elif not document.text.strip():
      dropped["empty"] += 1
    else:
      raw = document.text.encode()
      digest = hashlib.blake2b(raw, digest_size=16).digest()
      if digest in seen:
        dropped["duplicate"] += 1
      else:
        seen.add(digest)
        place, size = int.from_bytes(digest[:8], "big") / 2**64, len(raw)
    places.append(place)
    sizes.append(size)
    if number % _EVERY == 0:
      progress(f"reading {name}", number, 0)
  if len(seen) < len(config.splits):
    found = f"{len(seen)} usable documents (dropped: {dropped})"
    need = f"the splits {', '.join(config.splits)} need {len(config.splits)}"
    knob = "give more text, or set config.data.validation_fraction and test_fraction to 0"
    raise ValueError(f"config.data.corpora.{name} has {found}; {need}; {knob}")
  return Plan(_assign(np.array(places), config), np.array(sizes, np.int64), dropped)


def _assign(places: np.ndarray, config: DataConfig) -> np.ndarray:
  """Cuts the documents, sorted by their place in [0, 1), into test, validation, train."""
  split = np.full(len(places), _DROPPED, np.int8)
  order = np.argsort(places, kind="stable")
  order = order[np.searchsorted(places[order], 0.0) :]
  ordered = places[order]
  has_validation, has_test = config.validation_fraction > 0, config.test_fraction > 0
  held_out = config.validation_fraction + config.test_fraction
  first = int(np.searchsorted(ordered, config.test_fraction))
  first = min(max(first, has_test), len(order) - 1 - has_validation)
  second = int(np.searchsorted(ordered, held_out))
  second = min(max(second, first + has_validation), len(order) - 1)
  split[order[:first]] = SPLITS.index("test")
  split[order[first:second]] = SPLITS.index("validation")
  split[order[second:]] = SPLITS.index("train")
  return split


class TextCorpus(storage.ArrayRecordBuilder, skip_registration=True):
  """Documents {"id", "text"} of one source, in the order of the source.

  Args:
    folder: where it is built.
    name: of the corpus.
    source: its documents.
    config: the fractions of the splits.
    progress: told of the documents read and written.
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

  def _shard_iterators_per_split(self, dl_manager) -> Mapping[str, Sequence[Any]]:
    del dl_manager
    plan = make_plan(self._corpus, self._source, self._config, self._progress)
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
      shards[split] = [storage.take(examples, length) for length in plan.shards(split)]
    return shards

  def _examples(self, plan: Plan, split: str) -> Iterator[tuple[int, dict[str, str]]]:
    wanted = SPLITS.index(split)
    total, done = int(np.sum(plan.split == wanted)), 0
    for number, document in enumerate(self._source.documents()):
      if number < len(plan.split) and plan.split[number] == wanted:
        if document.text is None or len(document.text.encode()) != plan.size[number]:
          raise ValueError(f"{document.id} of corpus {self._corpus} changed while it was read")
        done += 1
        if done % _EVERY == 0 or done == total:
          self._progress(f"writing {self._corpus} {split}", done, total)
        yield number, {"id": document.id, "text": document.text}
    if done != total:
      raise ValueError(f"corpus {self._corpus} lost documents while it was read; run again")


def identity(corpus: CorpusConfig, source: Source, config: DataConfig) -> str:
  """Returns the fingerprint of what decides the records (the weight does not)."""
  fractions = [config.validation_fraction, config.test_fraction]
  version = str(TextCorpus.VERSION)
  return storage.fingerprint(version, corpus.source, source.identity, fractions)


def build(
  name: str, config: DataConfig, progress: storage.Progress = storage.silent
) -> tuple[str, Path]:
  """Builds the corpus called `name` of `config` unless it is built.

  Returns:
    its fingerprint, and where its records lie.
  """
  corpus = dict(config.corpora)[name]
  source = open_source(name, corpus)
  mark = identity(corpus, source, config)
  folder = Path(config.root) / "corpora" / f"{name}-{mark}"

  def make() -> TextCorpus:
    return TextCorpus(folder=folder, name=name, source=source, config=config, progress=progress)

  return mark, storage.prepare(folder, TextCorpus, make)
