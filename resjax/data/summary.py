"""Summaries of built data: counts per corpus and split, and the folders of text and rows."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from resjax.base import Damaged, typed_json
from resjax.data.built import Count
from resjax.data.config import SPLITS

_Folder = TypeVar("_Folder", str, Path)
Positive = Annotated[int, msgspec.Meta(ge=1)]


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

  documents: Positive
  bytes: Positive
  tokens: Positive
  rows: Positive
  fill: Annotated[float, msgspec.Meta(gt=0, le=1)]

  @property
  def bytes_per_token(self) -> float:
    """Bytes per token of text; the ends of text, one more than documents, are not counted."""
    return self.bytes / (self.tokens - self.documents - 1)


@dataclasses.dataclass(frozen=True)
class CorpusSummary(Generic[_Folder]):
  """One corpus: its splits, dropped documents by reason, and the folders of text and rows.

  In a file the folders are texts relative to the root, else paths.
  """

  splits: Mapping[str, SplitSummary]
  dropped: Mapping[str, Count]
  text: _Folder
  rows: _Folder


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
  corpora: Mapping[str, CorpusSummary[Path]]
  path: Path

  @property
  def splits(self) -> tuple[str, ...]:
    """The splits that are built, the same for every corpus, in the order of `SPLITS`."""
    built = [corpus.splits for corpus in self.corpora.values()]
    return tuple(split for split in SPLITS if all(split in splits for splits in built))


@dataclasses.dataclass(frozen=True)
class StoredSummary:
  """A `DatasetSummary` in a file, with paths relative to the root, and a digest of the rest."""

  fingerprint: str
  seq_len: Positive
  vocab_size: Positive
  tokenizer: str
  corpora: dict[str, CorpusSummary[str]]
  sha256: str = ""


def to_json(summary: DatasetSummary) -> str:
  """Returns the text of the file of a summary."""
  root = summary.path.parent
  values = dataclasses.asdict(summary)
  del values["path"]
  values = json.loads(json.dumps(values, default=lambda path: path.relative_to(root).as_posix()))
  return json.dumps(values | {"sha256": _digest(values)}, indent=2) + "\n"


def read(path: Path) -> StoredSummary:
  """Returns the summary in a file.

  Raises:
    Damaged: It holds no summary, or differs from its own digest.
  """
  try:
    found = typed_json.read(path, StoredSummary)
  except ValueError as error:
    raise Damaged(str(error)) from None
  if not found.sha256:
    raise Damaged(
      f"{path} has no sha256, as of data that were built by resjax 0.2.0 or before: resjax train "
      "with the config of the run builds them anew and goes on where the rows are the same"
    )
  values = dataclasses.asdict(found)
  del values["sha256"]
  if found.sha256 != _digest(values):
    raise Damaged(f"{path} is not as it was written")
  return found


def _digest(values: dict[str, Any]) -> str:
  return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
