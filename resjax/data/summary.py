"""What was built: counts per corpus and split, and where it lies."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from resjax.data.config import SPLITS


@dataclasses.dataclass(frozen=True)
class SplitSummary:
  """Counts of one split of one corpus.

  Attributes:
    documents: without duplicates and empty ones.
    bytes: of UTF-8 text.
    tokens: of the packed stream, every end of text included.
    rows: of T + 1 tokens that overlap by one.
    fill: share of the rows' T targets that are no padding.
  """

  documents: int
  bytes: int
  tokens: int
  rows: int
  fill: float

  @property
  def bytes_per_token(self) -> float:
    """Bytes of text over tokens of text; the end of text, one per document and one, has none."""
    return self.bytes / (self.tokens - self.documents - 1)


@dataclasses.dataclass(frozen=True)
class CorpusSummary:
  """One corpus: its splits, what was dropped and why, and where text and rows lie."""

  splits: Mapping[str, SplitSummary]
  dropped: Mapping[str, int]
  text: Path
  rows: Path


@dataclasses.dataclass(frozen=True)
class DatasetSummary:
  """All corpora of a data config.

  Attributes:
    fingerprint: of the rows of all corpora; a run that resumes must find the same.
    seq_len: T.
    vocab_size: V that the tokenizer reached.
    tokenizer: file to `resjax.data.tokenizer.load`.
    corpora: name to summary, sorted by name.
    path: the JSON file of this summary.
  """

  fingerprint: str
  seq_len: int
  vocab_size: int
  tokenizer: Path
  corpora: Mapping[str, CorpusSummary]
  path: Path

  @property
  def splits(self) -> tuple[str, ...]:
    """The splits that are built, the same for every corpus, in the order of `SPLITS`."""
    built = [corpus.splits for corpus in self.corpora.values()]
    return tuple(split for split in SPLITS if all(split in splits for splits in built))
