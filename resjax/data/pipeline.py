"""Batches of built data for training and evaluation, which any number of processes can share."""

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np

from resjax.data import storage, tokenizer
from resjax.data.config import DataConfig
from resjax.data.packing import PADDING, marked, split_rows
from resjax.data.summary import DatasetSummary
from resjax.data.synthetic import asked
from resjax.data.synthetic.alphabet import SyntheticTokenizer
from resjax.data.synthetic.tasks import Task

Batch = dict[str, np.ndarray]

_READ = grain.ReadOptions(num_threads=4, prefetch_buffer_size=8)  # The buffer holds batches.


def train_batches(
  config: DataConfig,
  dataset: DatasetSummary,
  *,
  batch_size: int,
  seed: int,
  rows: Sequence[int] | None = None,
) -> grain.DatasetIterator:
  """Returns an endless iterator over training batches, shuffled anew in every epoch.

  Global batch s is a pure function of (weights, dataset, batch_size, seed, s). Each corpus is
  shuffled as a whole and repeated, and the corpora take turns in proportion to their weights. Each
  process reads its own rows of a batch, with threads and never with processes.

  The state of the iterator is the number of batches taken, so that `set_state` takes it from an
  iterator over other rows too. Grain's Orbax handler (`grain.checkpoint.CheckpointSave`) stores a
  file per process and refuses another number of processes.

  Args:
    config: the weights of the corpora.
    dataset: the summary that `resjax.data.dataset.build` returned for `config`.
    batch_size: the number of rows per step over all processes.
    seed: the seed of the order.
    rows: the rows of each batch that this process reads, of 0 to batch_size - 1; None reads all.

  Returns:
    An iterator over dicts as `split_rows` returns them, with int32 arrays [number of rows, T], and
    `bytes` [number of rows], the bytes of text that the targets of each row stand for; targets of a
    synthetic task are its answers.

  Raises:
    ValueError: A row is not in the batch, or `config` and `dataset` have different corpora.
  """
  chosen = _chosen(batch_size, rows)
  weights = {name: corpus.weight for name, corpus in config.corpora}
  if weights.keys() != dataset.corpora.keys():
    built = f"the dataset was built with {', '.join(dataset.corpora)}; build config.data anew"
    raise ValueError(f"config.data.corpora names {', '.join(weights)}; {built}")
  streams = []
  for name, corpus in dataset.corpora.items():
    records = grain.MapDataset.source(storage.read(corpus.rows, "train"))
    streams.append(records.seed(_seed(seed, name)).shuffle().repeat())
  shares = [weights[name] for name in dataset.corpora]
  mixed = grain.MapDataset.mix(streams, shares)
  batches = grain.MapDataset.source(_Batches(mixed, batch_size, chosen))
  batches = batches.map(functools.partial(_batch_of, dataset))
  return iter(batches.to_iter_dataset(_READ))


class _Batches:
  """The batches of a stream of rows; batch s has, of rows s·B to s·B + B - 1, those at `chosen`."""

  def __init__(self, stream: grain.MapDataset, batch_size: int, chosen: Sequence[int]):
    self._stream, self._batch_size, self._chosen = stream, batch_size, chosen

  def __len__(self) -> int:
    return len(self._stream) // self._batch_size

  def __getitem__(self, index: int) -> list[dict[str, np.ndarray]]:
    start = index * self._batch_size
    return [self._stream[start + row] for row in self._chosen]


def evaluation_batches(
  dataset: DatasetSummary,
  split: str,
  *,
  batch_size: int,
  max_rows: int = 0,
  rows: Sequence[int] | None = None,
  corpus: str | None = None,
) -> Iterator[Batch]:
  """Yields every row of `split` once, with the corpora in order of name and the last batch padded.

  Args:
    dataset: the summary that `resjax.data.dataset.build` returned.
    split: `train`, `validation` or `test`.
    batch_size: the number of rows per batch over all processes; each gets as many batches.
    max_rows: the number of rows to take, evenly spaced over the split; 0 takes all.
    rows: the rows of each batch that this process reads, of 0 to batch_size - 1; None reads all.
    corpus: only the taken rows of this corpus are read, or its first one where it has
      none among them; None: all.

  Returns:
    An iterator over dicts like the batches of `train_batches`; added rows of padding have segment
    id 0.

  Raises:
    ValueError: The split is not built, max_rows is negative, or a row is not in the batch.
  """
  chosen = _chosen(batch_size, rows)
  if split not in dataset.splits:
    remedy = "held-out splits need config.data.validation_fraction and test_fraction above 0"
    raise ValueError(f"split {split!r} is not there; built: {', '.join(dataset.splits)}; {remedy}")
  if max_rows < 0:
    raise ValueError(f"max_rows is {max_rows}; allowed: 0 (all rows) or more")
  sources = [storage.read(corpus.rows, split) for corpus in dataset.corpora.values()]
  records = grain.MapDataset.concatenate([grain.MapDataset.source(source) for source in sources])
  count = min(max_rows, len(records)) if max_rows else len(records)
  taken = np.arange(count) * len(records) // count
  if corpus is not None:
    number = list(dataset.corpora).index(corpus)
    ends = np.cumsum([len(source) for source in sources])
    first = ends[number] - len(sources[number])
    own = taken[(taken >= first) & (taken < ends[number])]
    taken = own if len(own) else np.array([first])
  return _read_padded(records, taken, batch_size, chosen, dataset)


def _read_padded(
  records: grain.MapDataset,
  taken: np.ndarray,
  batch_size: int,
  chosen: Sequence[int],
  dataset: DatasetSummary,
) -> Iterator[Batch]:
  for start in range(0, len(taken), batch_size):
    nothing: dict[str, Any] = {
      "tokens": np.full(dataset.seq_len + 1, PADDING, np.int32),
      "bytes": np.int32(0),
    }
    numbers = range(start, start + batch_size)
    rows = [records[int(taken[i])] if i < len(taken) else nothing for i in numbers]
    yield _batch_of(dataset, [rows[row] for row in chosen])


def _batch_of(dataset: DatasetSummary, rows: Sequence[Mapping[str, np.ndarray]]) -> Batch:
  """Returns the batch of some rows: next tokens are its targets, or the answers of a task."""
  words = tokenizer.of_data(dataset.tokenizer)
  tokens, sizes = zip(*(_with_bytes(row, dataset.tokenizer) for row in rows), strict=True)
  batch = {**split_rows(np.stack(tokens)), "bytes": np.array(sizes, np.int32)}
  return asked.ask(batch, words.task) if isinstance(words, SyntheticTokenizer) else batch


def _with_bytes(row: Mapping[str, np.ndarray], words: Path) -> tuple[np.ndarray, int]:
  """Returns the tokens of a row with their marks, and the bytes of its targets.

  Rows of earlier releases have neither marks nor bytes; then each token's own bytes are counted.
  """
  tokens = row["tokens"]
  if "bytes" in row:
    return tokens, int(row["bytes"])
  targets = tokens[1:][tokens[1:] != PADDING]
  return marked(tokens, tokenizer.of_data(words).eot_id), int(_sizes(words)[targets].sum())


@functools.cache
def _sizes(words: Path) -> np.ndarray:
  return tokenizer.of_data(words).token_bytes()


def task_of(dataset: DatasetSummary) -> Task | None:
  """Returns the synthetic task that data are made of; None where they are text."""
  found = tokenizer.of_data(dataset.tokenizer)
  return found.task if isinstance(found, SyntheticTokenizer) else None


def _chosen(batch_size: int, rows: Sequence[int] | None) -> Sequence[int]:
  if batch_size < 1:
    raise ValueError(f"config.train.batch_size is {batch_size}; it must be at least 1")
  chosen = range(batch_size) if rows is None else [int(row) for row in rows]
  if not chosen or min(chosen) < 0 or max(chosen) >= batch_size:
    raise ValueError(f"rows are {list(chosen)}; allowed: some of 0 to {batch_size - 1}")
  return chosen


def _seed(seed: int, name: str) -> int:
  """Returns the seed of one corpus, so that its order does not depend on the other corpora."""
  digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=4).digest()
  return int.from_bytes(digest, "big")
