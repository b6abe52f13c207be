"""The evaluation of a run in progress on held-out rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

import jax

from resjax.base import PyTree
from resjax.base.sharding import Layout
from resjax.data import Batch as HostBatch
from resjax.data import DatasetSummary, evaluation_batches, task_of
from resjax.data.synthetic import Task, by_level
from resjax.models import LossSums
from resjax.train.gradients import Batch
from resjax.train.metrics import bits_per_byte

SPLIT = "validation"  # the split that runs in progress are evaluated on


def evaluate(
  eval_step: Callable[[PyTree, Batch], LossSums],
  params: PyTree,
  dataset: DatasetSummary,
  layout: Layout,
  around_batch: Callable[[], AbstractContextManager],
  *,
  batch_size: int,
  max_rows: int,
) -> dict[str, float]:
  """Returns the loss (nats per token), bits per byte and accuracy over rows of the split.

  The rows of one corpus after another are read, so that each has bits per byte of its own. Their
  mean, in which every corpus counts once whatever its size, is the macro average.

  Args:
    eval_step: what `make_eval_step` returns, compiled or not.
    params: the parameters of the model.
    dataset: the built data.
    layout: says which devices hold which part of a batch.
    around_batch: gives the context in which a batch is evaluated; it may end the evaluation by
      raising.
    batch_size: the number of rows per step over all devices. max_rows: this many evenly spaced rows
    of the split are read, and at least one of each corpus; 0: all.

  Returns:
    A dict with the keys `loss`, `bits_per_byte` and `accuracy`; of several corpora also with
    `bits_per_byte/CORPUS` for each, and `macro_bits_per_byte`; of a synthetic task also with
    `accuracy_LEVEL` for each of its levels of difficulty.
  """
  rows = layout.rows(batch_size).tolist()
  task = task_of(dataset)
  found: dict[_Part, LossSums] = {}
  part, running = _Part("", ""), LossSums.zeros()
  for corpus in dataset.corpora:
    for whole in evaluation_batches(
      dataset, SPLIT, batch_size=batch_size, max_rows=max_rows, rows=rows, corpus=corpus
    ):
      for level, batch in _levels(whole, task):
        with around_batch():
          of, before = part, running
          part = _Part(corpus, level)
          running = eval_step(params, layout.put(batch, batch_size))
          # This waits for the batch before, so that a stop need not wait for more than one.
          found[of] = found.get(of, LossSums.zeros()) + jax.device_get(before)
  found[part] = found.get(part, LossSums.zeros()) + running
  found = {part: jax.device_get(sums) for part, sums in found.items()}
  return summary(_total(found.values())) | _by_corpus(found) | _by_level(found)


class _Part(NamedTuple):
  """What some of the rows have in common: their corpus, and their level of difficulty or ""."""

  corpus: str
  level: str


def _levels(batch: HostBatch, task: Task | None) -> Iterator[tuple[str, HostBatch]]:
  """Yields a batch, or with a task its parts by level of difficulty, and their names."""
  if task is None:
    yield "", batch
  else:
    yield from by_level(batch, task)


def _total(sums: Iterable[LossSums]) -> LossSums:
  return sum(sums, LossSums.zeros())


def _by_corpus(found: Mapping[_Part, LossSums]) -> dict[str, float]:
  """Returns bits per byte of each of several corpora and their mean; nothing for a single one."""
  names = dict.fromkeys(part.corpus for part in found if part.corpus)
  if len(names) < 2:
    return {}
  sums = {n: _total(one for part, one in found.items() if part.corpus == n) for n in names}
  values = {name: summary(one)["bits_per_byte"] for name, one in sums.items()}
  named = {f"bits_per_byte/{name}": value for name, value in values.items()}
  return named | {"macro_bits_per_byte": sum(values.values()) / len(values)}


def _by_level(found: Mapping[_Part, LossSums]) -> dict[str, float]:
  """Returns the accuracy of each level of difficulty that has answers."""
  names = sorted({part.level for part in found if part.level})
  sums = {n: _total(one for part, one in found.items() if part.level == n) for n in names}
  return {f"accuracy_{n}": float(one.correct / one.tokens) for n, one in sums.items() if one.tokens}


def summary(sums: LossSums) -> dict[str, float]:
  """Returns the loss, bits per byte and accuracy of loss sums that are on the host."""
  return {
    "loss": float(sums.nats / sums.tokens),
    "bits_per_byte": bits_per_byte(float(sums.nats), float(sums.bytes)),
    "accuracy": float(sums.correct / sums.tokens),
  }
