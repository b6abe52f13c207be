"""Batches of built data for training and evaluation, the same whatever the number of hosts."""

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

import grain
import numpy as np

from resjax.data import storage, tokenizer
from resjax.data.config import DataConfig
from resjax.data.packing import PADDING, split_rows
from resjax.data.summary import DatasetSummary

Batch = dict[str, np.ndarray]

_READ = grain.ReadOptions(num_threads=4, prefetch_buffer_size=8)  # batches


def train_batches(
  config: DataConfig,
  dataset: DatasetSummary,
  *,
  batch_size: int,
  seed: int,
  process_index: int = 0,
  process_count: int = 1,
) -> grain.DatasetIterator:
  """Returns an endless iterator over training batches, shuffled anew in every epoch.

  Global batch s is a pure function of (weights, dataset, batch_size, seed, s): each corpus is
  shuffled as a whole and repeated, the corpora take turns in proportion to their weights, and each
  host takes its consecutive share of the rows. Nothing is built, and no source of text is looked
  at. Reading uses threads, never processes.

  The state of the iterator is the number of batches taken: what `get_state` returns fits
  `set_state` on any number of hosts. Grain's Orbax handler (`grain.checkpoint.CheckpointSave`)
  stores a file per process and refuses another number of processes.

  Args:
    config: the weights of the corpora.
    dataset: what `resjax.data.dataset.build` gave for `config`.
    batch_size: rows per step over all hosts.
    seed: of the order.
    process_index: this host.
    process_count: hosts.

  Returns:
    iterator over dicts of `split_rows`: [batch_size / process_count, T] int32 each.

  Raises:
    ValueError: batch_size is not a positive multiple of process_count, or the corpora of `config`
      are not those of `dataset`.
  """
  per_host = _rows_per_host(batch_size, process_index, process_count)
  weights = {name: corpus.weight for name, corpus in config.corpora}
  if weights.keys() != dataset.corpora.keys():
    built = f"the dataset was built with {', '.join(dataset.corpora)}; build config.data anew"
    raise ValueError(f"config.data.corpora names {', '.join(weights)}; {built}")
  streams = []
  for name, corpus in dataset.corpora.items():
    rows = grain.MapDataset.source(storage.read(corpus.rows, "train"))
    streams.append(rows.seed(_seed(seed, name)).shuffle().repeat())
  shares = [weights[name] for name in dataset.corpora]
  batches = grain.MapDataset.mix(streams, shares).batch(per_host)[process_index::process_count]
  batches = batches.map(functools.partial(_features, eot_id=_eot_id(dataset.tokenizer)))
  return iter(batches.to_iter_dataset(_READ))


def evaluation_batches(
  dataset: DatasetSummary,
  split: str,
  *,
  batch_size: int,
  max_rows: int = 0,
  process_index: int = 0,
  process_count: int = 1,
) -> Iterator[Batch]:
  """Yields every row of `split` once, all corpora in order of name, the last batch padded.

  Args:
    dataset: what `resjax.data.dataset.build` gave.
    split: `train`, `validation` or `test`.
    batch_size: rows per batch over all hosts; every host gets the same number of batches.
    max_rows: if not 0 and fewer than there are, take this many, evenly spaced over all.
    process_index: this host.
    process_count: hosts.

  Returns:
    iterator over dicts of `split_rows`; rows that fill up the last batch have segment id 0.

  Raises:
    ValueError: the split is not built, max_rows is negative, or batch_size is not a positive
      multiple of process_count.
  """
  per_host = _rows_per_host(batch_size, process_index, process_count)
  if split not in dataset.splits:
    knob = "held-out splits need config.data.validation_fraction and test_fraction above 0"
    raise ValueError(f"split {split!r} is not there; built: {', '.join(dataset.splits)}; {knob}")
  if max_rows < 0:
    raise ValueError(f"max_rows is {max_rows}; allowed: 0 (all rows) or more")
  sources = [storage.read(corpus.rows, split) for corpus in dataset.corpora.values()]
  rows = grain.MapDataset.concatenate([grain.MapDataset.source(source) for source in sources])
  count = min(max_rows, len(rows)) if max_rows else len(rows)
  chosen = np.arange(count) * len(rows) // count
  return _read_padded(rows, chosen, batch_size, process_index * per_host, per_host, dataset)


def _read_padded(
  rows: grain.MapDataset,
  chosen: np.ndarray,
  batch_size: int,
  offset: int,
  per_host: int,
  dataset: DatasetSummary,
) -> Iterator[Batch]:
  eot_id = _eot_id(dataset.tokenizer)
  for start in range(offset, offset + len(chosen), batch_size):
    tokens = np.full((per_host, dataset.seq_len + 1), PADDING, np.int32)
    for slot, index in enumerate(chosen[start : start + per_host]):
      tokens[slot] = rows[int(index)]["tokens"]
    yield split_rows(tokens, eot_id)


def _features(batch: Batch, eot_id: int) -> Batch:
  return split_rows(batch["tokens"], eot_id)


@functools.cache  # the fingerprint in the path stands for the content
def _eot_id(path: Path) -> int:
  return tokenizer.load(path).eot_id


def _rows_per_host(batch_size: int, process_index: int, process_count: int) -> int:
  if batch_size < 1 or batch_size % process_count:
    need = f"a positive multiple of the {process_count} processes"
    raise ValueError(f"config.train.batch_size is {batch_size}; it must be {need}")
  if not 0 <= process_index < process_count:
    raise ValueError(f"process_index is {process_index}; allowed: 0 to {process_count - 1}")
  return batch_size // process_count


def _seed(seed: int, name: str) -> int:
  """A seed per corpus, so that one corpus's order does not depend on the others."""
  digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=4).digest()
  return int.from_bytes(digest, "big")
