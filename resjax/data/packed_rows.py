"""A tokenized corpus in rows of equal length, as a TFDS data set with the shards of its text."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from resjax.data import array_records, built, storage
from resjax.data.batching import batched
from resjax.data.config import DataConfig
from resjax.data.packing import RowCutter, numbers
from resjax.data.tokenizer import Tokenizer, load

# One call of the tokenizer gets documents up to one of these limits.
_BATCH_BYTES = 1 << 20
_BATCH_DOCUMENTS = 1024


class PackedRows(array_records.ArrayRecordBuilder, skip_registration=True):  # type: ignore[call-arg]
  """Rows {"tokens": int32 [T+1], "bytes": int32} of one corpus, whose records lie in a folder.

  T is `seq_len`, and the progress is called with the number of bytes of text packed. Rows as
  earlier releases built them have neither bytes nor the marks of `packing`.
  """

  def __init__(
    self,
    *,
    folder: Path,
    name: str,
    records: Path,
    tokenizer: Tokenizer,
    seq_len: int,
    form: int,
    progress: storage.Progress = storage.silent,
  ):
    self._form = form
    self._corpus, self._records = name, records
    self._facts = built.facts(records.parents[1])
    self._tokenizer, self._seq_len, self._progress = tokenizer, seq_len, progress
    super().__init__(folder=folder)

  def _info(self) -> tfds.core.DatasetInfo:
    features = storage.row_features(self._seq_len, self._form)
    return self._info_of("A corpus packed into rows of tokens.", features)

  def _shard_iterators_per_split(self, dl_manager: Any) -> Mapping[str, Sequence[Any]]:
    del dl_manager
    self.info.metadata["splits"] = {}
    shards = {}
    for split, facts in self._facts.splits.items():
      cutter = RowCutter(self._seq_len, self._tokenizer.documents)
      ends = np.cumsum([count for _, count in facts.shards]).tolist()
      shards[split] = [
        functools.partial(self._rows, split, cutter, start, stop)
        for start, stop in zip([0, *ends[:-1]], ends, strict=True)
      ]
    return shards

  def _rows(
    self, split: str, cutter: RowCutter, start: int, stop: int
  ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yields the rows that documents `start` to `stop` of `split` fill, each with its number."""
    documents = storage.read(self._records, split)
    summary = self.info.metadata["splits"].setdefault(split, {"rows": 0})
    total = self._facts.splits[split].counts["bytes"]
    done = start * total // len(documents)
    for texts in _batches(documents, start, stop):
      encoded = self._tokenizer.encode_with_bytes([text.decode() for text in texts])
      done += sum(map(len, texts))
      self._progress(f"packing {self._corpus} {split}", min(done, total), total)
      yield from self._numbered(cutter, cutter.push(*zip(*encoded, strict=True)), summary)
    if stop == len(documents):
      yield from self._numbered(cutter, cutter.finish(), summary)
    summary["tokens"] = cutter.num_tokens

  def _numbered(
    self, cutter: RowCutter, rows: np.ndarray, summary: dict[str, int]
  ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yields rows, each with its number, and counts them."""
    for tokens, size in zip(rows, cutter.bytes, strict=True):
      row = {"tokens": tokens, "bytes": np.int32(size)}
      yield summary["rows"], row if self._form else {"tokens": numbers(tokens)}
      summary["rows"] += 1


def _batches(documents: storage.Records, start: int, stop: int) -> Iterator[list[bytes]]:
  texts = (documents[index]["text"] for index in range(start, stop))
  return batched(texts, len, _BATCH_BYTES, _BATCH_DOCUMENTS)


def identity(config: DataConfig, corpus: str, tokenizer: str) -> str:
  """Returns the fingerprint of packed rows, given the fingerprints of corpus and tokenizer."""
  parts = [str(PackedRows.VERSION), corpus, tokenizer, config.seq_len]
  # Rows without a form keep the fingerprints that earlier releases gave them.
  return storage.fingerprint(*parts, *filter(None, [_form(config)]))


def _form(config: DataConfig) -> int:
  return storage.ROW_FORM if config.tokenizer.documents else 0


def build(
  name: str,
  config: DataConfig,
  corpus: tuple[str, Path],
  tokenizer: tuple[str, Path],
  progress: storage.Progress = storage.silent,
) -> tuple[str, Path]:
  """Packs a built corpus with a built tokenizer unless it is packed.

  Args:
    name: the name of the corpus.
    config: T and the folder of built data.
    corpus: the fingerprint of the corpus, and the folder of its records.
    tokenizer: the fingerprint of the tokenizer, and its file.
    progress: is called with the number of bytes of text packed.

  Returns:
    The fingerprint of the rows, and the folder of their records.
  """
  mark = identity(config, corpus[0], tokenizer[0])
  coder = load(tokenizer[1])

  def make(folder: Path) -> PackedRows:
    return PackedRows(
      folder=folder,
      name=name,
      records=corpus[1],
      tokenizer=coder,
      seq_len=config.seq_len,
      form=_form(config),
      progress=progress,
    )

  sizes = {"seq_len": config.seq_len, "vocab_size": coder.vocab_size, "form": _form(config)}
  return mark, array_records.prepare(
    config, f"rows/{name}-{mark}", PackedRows, make, progress, **sizes
  )
