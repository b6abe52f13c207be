"""The split of each document: the hash of its text decides, and duplicates are dropped."""

import dataclasses
import hashlib

import numpy as np

from resjax.data import storage
from resjax.data.config import SPLITS, DataConfig
from resjax.data.sources import Source

DROPPED = -1
PROGRESS_EVERY = 256  # Documents between two calls of progress.
_SHARD_BYTES = 64 << 20  # Bytes of text; one shard is in memory while it is written.


@dataclasses.dataclass(frozen=True)
class SplitPlan:
  """What becomes of each document of a source.

  Attributes:
    split: the index into `SPLITS` of each document [documents read], `DROPPED` where it has none.
    size: the bytes of UTF-8 of each document [documents read].
    dropped: the number of dropped documents by reason: `duplicate`, `empty`, `undecodable`.
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


def plan_splits(
  name: str, source: Source, config: DataConfig, progress: storage.Progress = storage.silent
) -> SplitPlan:
  """Reads the source once and decides the split of each document.

  The hash of its text gives a document a place in [0, 1). Places below `test_fraction` are the test
  split, the next `validation_fraction` are validation, the rest is train, so that new documents
  move no other. Where this leaves a split empty, it gets the documents nearest to it, so that each
  split has one. Of exact duplicates the first is kept. The plan takes 150 to 200 bytes of memory
  per document.

  Raises:
    ValueError: The source has fewer usable documents than there are splits.
  """
  seen: set[bytes] = set()
  places, sizes = [], []
  dropped = dict.fromkeys(("duplicate", "empty", "undecodable"), 0)
  for number, document in enumerate(source.documents()):
    place, size = _place(document.text, seen), 0
    if isinstance(place, str):
      dropped[place] += 1
      place = DROPPED
    elif document.text:
      size = len(document.text.encode())
    places.append(place)
    sizes.append(size)
    if number % PROGRESS_EVERY == 0:
      progress(f"reading {name}", number, 0)
  if len(seen) < len(config.splits):
    found = f"{len(seen)} usable documents (dropped: {dropped})"
    need = f"the splits {', '.join(config.splits)} need {len(config.splits)}"
    knob = f"give config.data.corpora.{name}.source more documents"
    raise ValueError(f"config.data.corpora.{name} has {found}; {need}; {knob}")
  return SplitPlan(_assign(np.array(places), config), np.array(sizes, np.int64), dropped)


def _place(text: str | None, seen: set[bytes]) -> float | str:
  """Returns the place of a document in [0, 1), or the reason to drop it; notes its hash."""
  if text is None:
    return "undecodable"
  if not text.strip():
    return "empty"
  digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
  if digest in seen:
    return "duplicate"
  seen.add(digest)
  return int.from_bytes(digest[:8], "big") / 2**64


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
