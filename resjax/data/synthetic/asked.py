"""Batches of a synthetic task: targets are its answers, of all levels or of one."""

from collections.abc import Iterator

import numpy as np

from resjax.base import NOT_ASKED
from resjax.data.synthetic.alphabet import symbol_bytes
from resjax.data.synthetic.tasks import Task

Batch = dict[str, np.ndarray]


def ask(batch: Batch, task: Task) -> Batch:
  """Returns a batch of `split_rows` with the answers of a task as targets.

  Args:
    batch: rows that have one document each, behind an end of text; int32 [B, T] each.
    task: the task that the documents are of.

  Returns:
    The batch with targets `NOT_ASKED` where nothing is asked, as at the end of text and in padding.
  """
  return _with_targets(batch, _answers(batch, task)[0], task)


def by_level(batch: Batch, task: Task) -> Iterator[tuple[str, Batch]]:
  """Yields the batch with the answers of one level of difficulty after the other.

  All batches of a task have the same levels, in padding too, so that processes go together.

  Args:
    batch, task: see `ask`.

  Returns:
    Pairs of a name, such as position_03, and a batch.
  """
  answers, levels = _answers(batch, task)
  for level in range(task.num_levels):
    name = f"{task.level_name}_{level:02}"
    yield name, _with_targets(batch, np.where(levels == level, answers, NOT_ASKED), task)


def _with_targets(batch: Batch, targets: np.ndarray, task: Task) -> Batch:
  """Returns the batch with other targets, and the bytes of those that are asked for."""
  sizes = np.append(symbol_bytes(task.num_symbols), 0)  # the last one is that of `NOT_ASKED`
  return {**batch, "targets": targets, "bytes": sizes[targets].sum(axis=1).astype(np.int32)}


def _answers(batch: Batch, task: Task) -> tuple[np.ndarray, np.ndarray]:
  """Returns answers and levels [B, T] of a batch, `NOT_ASKED` where nothing is asked."""
  here = batch["segment_ids"] != 0
  documents = np.where(here, batch["inputs"], 0)[:, 1:]
  found = []
  for values in task.answers(documents):
    whole = np.pad(values, ((0, 0), (1, 0)), constant_values=NOT_ASKED)
    found.append(np.where(here, whole, NOT_ASKED))
  return found[0], found[1]
