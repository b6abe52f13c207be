"""A corpus as a TFDS data set: documents without duplicates, in splits by the hash of the text."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import tensorflow_datasets as tfds

from resjax.data import array_records, digest_cache, dropped, storage
from resjax.data.config import SPLITS, DataConfig, SettingNames
from resjax.data.dropped import Dropped
from resjax.data.sources import Source, open_source
from resjax.data.text_digest import TextDigest, TextHasher, digest_of, place_of

DROPPED = -1
_PROGRESS_EVERY = 256  # Documents between two calls of progress.
_SHARD_BYTES = 64 << 20  # Bytes of text; one shard is in memory while it is written.


@dataclasses.dataclass(frozen=True)
class SplitPlan:
  """The split of each document of a source, and the documents that are dropped.

  Attributes:
    split: the index into `SPLITS` of each document [documents read], `DROPPED` where it has none.
    size: the bytes of UTF-8 of each document [documents read].
    place: the place in [0, 1) that its hash gives each document [documents read], -1 where it is
      dropped.
    dropped: how many were left out by reason: documents that are `duplicate`, `empty` or
      `undecodable`, and files that the source leaves out.
    text: a digest of the documents.
  """

  split: np.ndarray
  size: np.ndarray
  place: np.ndarray
  dropped: dict[str, int]
  text: TextDigest

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


def plan_splits(
  name: str,
  source: Source,
  config: DataConfig,
  progress: storage.Progress = storage.silent,
  listing: IO[str] | None = None,
) -> SplitPlan:
  """Reads the source once and decides the split of each document.

  The hash of its text gives a document a place in [0, 1). Places below `test_fraction` are the test
  split, the next `validation_fraction` are validation, the rest is train, so that new documents
  move no other. Where this leaves a split empty, it gets the documents nearest to it, so that each
  split has one. Of exact duplicates the first is kept. The plan takes 150 to 200 bytes of memory
  per document.

  Args:
    name: the name of the corpus.
    source: its documents.
    config: the fractions of the splits.
    progress: is called with the number of documents read.
    listing: gets the reason and the name of everything that is left out.

  Raises:
    ValueError: The source has fewer usable documents than there are splits.
  """
  seen: set[bytes] = set()
  places, sizes = [], []
  hasher = TextHasher()
  left_out = Dropped(listing)
  for file, reason in source.look().left_out:
    left_out.add(reason, file)
  for number, document in enumerate(source.documents()):
    place, size = _place(document.text, hasher.add(document.text), seen), 0
    if isinstance(place, str):
      left_out.add(place, document.id)
      place = DROPPED
    elif document.text:
      size = len(document.text.encode())
    places.append(place)
    sizes.append(size)
    if number % _PROGRESS_EVERY == 0:
      progress(f"reading {name}", number, 0)
  if len(seen) < len(config.splits):
    found = f"{len(seen)} usable documents in {dict(config.corpora)[name].source} ({left_out})"
    need = f"the splits {', '.join(config.splits)} need {len(config.splits)}"
    remedy = f"give config.data.corpora.{name}.source more documents"
    raise ValueError(f"config.data.corpora.{name} has {found}; {need}; {remedy}")
  at = np.array(places, np.float64)
  split = _assign(at, config)
  return SplitPlan(split, np.array(sizes, np.int64), at, left_out.counts, hasher.digest())


def _place(text: str | None, digest: bytes, seen: set[bytes]) -> float | str:
  """Returns the place of a document in [0, 1), or the reason to drop it; notes its digest."""
  if text is None:
    return "undecodable"
  if not text.strip():
    return "empty"
  if digest in seen:
    return "duplicate"
  seen.add(digest)
  return place_of(digest)


def _assign(places: np.ndarray, config: DataConfig) -> np.ndarray:
  """Returns the split of each document: in order of place come test, validation and train."""
  split = np.full(len(places), DROPPED, np.int8)
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


class TextCorpus(array_records.ArrayRecordBuilder, skip_registration=True):  # type: ignore[call-arg]
  """Documents {"id", "text"} of one source, in the order of the source.

  A build reads the source once to plan the splits, and once more for each split. It fails unless
  all of them give the documents that `text` says. What is left out is listed in the folder, in
  `dropped.FILE_NAME`. The progress is called with the numbers of documents read
  and written.
  """

  def __init__(
    self,
    *,
    folder: Path,
    name: str,
    source: Source,
    text: TextDigest,
    config: DataConfig,
    progress: storage.Progress = storage.silent,
  ):
    self._corpus, self._source, self._text, self._config = name, source, text, config
    self._progress, self._listing = progress, folder / dropped.FILE_NAME
    super().__init__(folder=folder)

  def _info(self) -> tfds.core.DatasetInfo:
    return self._info_of("Documents of one corpus, without duplicates.", storage.text_features())

  def _shard_iterators_per_split(self, dl_manager: Any) -> Mapping[str, Sequence[Any]]:
    del dl_manager
    with open(self._listing, "w", encoding="utf-8") as listing:
      plan = plan_splits(self._corpus, self._source, self._config, self._progress, listing)
    if plan.text != self._text:
      digest_cache.forget(self._config.root, self._source)
      raise ValueError(f"corpus {self._corpus} changed while it was read; run again")
    self.info.metadata["dropped"] = plan.dropped
    self.info.metadata["text"] = dataclasses.asdict(plan.text)
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
        text = document.text
        if text is None or place_of(digest_of(text)) != plan.place[number]:
          raise ValueError(f"{document.id} of corpus {self._corpus} changed while it was read")
        done += 1
        if done % _PROGRESS_EVERY == 0 or done == total:
          self._progress(f"writing {self._corpus} {split}", done, total)
        yield number, {"id": document.id, "text": text}
    if done != total:
      raise ValueError(f"corpus {self._corpus} lost documents while it was read; run again")


def identity(text: TextDigest, config: DataConfig) -> str:
  """Returns the fingerprint of all that decides the records: the documents and their splits."""
  fractions = [config.validation_fraction, config.test_fraction]
  return storage.fingerprint(str(TextCorpus.VERSION), text.root, fractions)


def digest(
  name: str, source: Source, root: str, progress: storage.Progress = storage.silent
) -> TextDigest:
  """Returns the digest of the documents of a source; reads them unless it is stored.

  Args:
    name: the name of the corpus.
    source: the documents.
    root: `DataConfig.root`, where the digest of files that did not change since is kept.
    progress: is called with the number of documents that were read.
  """
  found = digest_cache.load(root, source)
  if found is None:
    hasher = TextHasher()
    for number, document in enumerate(source.documents(), 1):
      hasher.add(document.text)
      if number % _PROGRESS_EVERY == 0:
        progress(f"comparing {name}", number, 0)
    found = hasher.digest()
    digest_cache.save(root, source, found)
  return found


def opened(name: str, config: DataConfig) -> Source:
  """Returns the source of the corpus called `name`, see `open_source`."""
  return open_source(SettingNames.of_corpus(name), dict(config.corpora)[name])


def build(
  name: str,
  config: DataConfig,
  progress: storage.Progress = storage.silent,
  text: TextDigest | None = None,
) -> tuple[str, Path]:
  """Builds the corpus called `name` of `config` unless it is built.

  Args:
    name: the name of the corpus.
    config: the corpus, its splits, and the folder of built data.
    progress: is called with the number of documents that were read and written.
    text: what `digest` returned; None: it is asked.

  Returns:
    The fingerprint of the corpus, and the folder of its records.
  """
  text = text or digest(name, opened(name, config), config.root, progress)
  mark = identity(text, config)

  def make(folder: Path) -> TextCorpus:
    source = opened(name, config)  # lists its files, which a corpus that is there need not do
    return TextCorpus(
      folder=folder, name=name, source=source, text=text, config=config, progress=progress
    )

  return mark, array_records.prepare(config, f"corpora/{name}-{mark}", TextCorpus, make, progress)
