"""Summaries of built data: counts per corpus and split, and the folders of text and rows."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from resjax.data.config import SPLITS


@dataclasses.dataclass(frozen=True)
class SplitSummary:
  """Counts of one split of one corpus.

  Attributes:
    documents: the number of documents, without duplicates and empty ones.
    bytes: the number of bytes of their UTF-8 text.
    tokens: the number of tokens of the packed stream, every end of text included.
    rows: the number of rows of T + 1 tokens, which overlap by one token.
    fill: the share of the targets of the rows, T each, that are not padding.
  """

  documents: int
  bytes: int
  tokens: int
  rows: int
  fill: float

  @property
  def bytes_per_token(self) -> float:
    """Bytes per token of text; the ends of text, one more than documents, are not counted."""
    return self.bytes / (self.tokens - self.documents - 1)


@dataclasses.dataclass(frozen=True)
class CorpusSummary:
  """One corpus: its splits, dropped documents by reason, and the folders of text and rows."""

  splits: Mapping[str, SplitSummary]
  dropped: Mapping[str, int]
  text: Path
  rows: Path


@dataclasses.dataclass(frozen=True)
class DatasetSummary:
  """All corpora of a data config.

  Attributes:
    fingerprint: names the rows of all corpora; a run that resumes must find the same.
    seq_len: T.
    vocab_size: V, the number of tokens that the tokenizer has.
    tokenizer: the file that `resjax.data.tokenizer.load` reads.
    corpora: the summary of each corpus by name, sorted.
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
