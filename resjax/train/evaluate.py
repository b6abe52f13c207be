"""The evaluation of a run in progress on held-out rows."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import jax

from resjax.data.pipeline import Batch as HostBatch
from resjax.data.pipeline import evaluation_batches, task_of
from resjax.data.summary import DatasetSummary
from resjax.data.synthetic.asked import by_level
from resjax.data.synthetic.tasks import Task
from resjax.losses import LossSums
from resjax.metrics import bits_per_byte
from resjax.sharding import Layout
from resjax.train.step import Batch
from resjax.typing import Array, PyTree

SPLIT = "validation"  # the split that runs in progress are evaluated on


def evaluate(
  eval_step: Callable[[PyTree, Batch, Array], LossSums],
  params: PyTree,
  dataset: DatasetSummary,
  layout: Layout,
  token_bytes: Array,
  around_batch: Callable[[], AbstractContextManager],
  *,
  batch_size: int,
  max_rows: int,
) -> dict[str, float]:
  """Returns the loss (nats per token), bits per byte and accuracy over rows of the split.

  Args:
    eval_step: what `make_eval_step` returns, compiled or not.
    params: the parameters of the model.
    dataset: the built data.
    layout: says which devices hold which part of a batch.
    token_bytes: [V], the number of bytes that each token stands for.
    around_batch: gives the context in which a batch is evaluated; it may end the evaluation by
      raising.
    batch_size: the number of rows per step over all devices.
    max_rows: so many evenly spaced rows of the split are read; 0: all.

  Returns:
    A dict with the keys `loss`, `bits_per_byte` and `accuracy`; of a synthetic task also
    `accuracy_LEVEL` for each of its levels of difficulty.
  """
  rows = layout.rows(batch_size).tolist()
  task = task_of(dataset)
  totals: dict[str, LossSums] = {}
  name, running = "", LossSums.zeros()
  for whole in evaluation_batches(
    dataset, SPLIT, batch_size=batch_size, max_rows=max_rows, rows=rows
  ):
    for part, batch in _parts(whole, task):
      with around_batch():
        before, of = running, name
        name, running = part, eval_step(params, layout.put(batch, batch_size), token_bytes)
        # This waits for the batch before, so that a stop need not wait for more than one.
        totals[of] = totals.get(of, LossSums.zeros()) + jax.device_get(before)
  totals[name] = totals.get(name, LossSums.zeros()) + jax.device_get(running)
  return _by_part(jax.device_get(totals))


def _parts(batch: HostBatch, task: Task | None) -> Iterator[tuple[str, HostBatch]]:
  """Yields a batch, or with a task its parts by level of difficulty, and their names."""
  if task is None:
    yield "", batch
  else:
    yield from by_level(batch, task)


def _by_part(totals: dict[str, LossSums]) -> dict[str, float]:
  """Returns the summary of all parts, and the accuracy of each that has a name."""
  whole = summary(sum(totals.values(), LossSums.zeros()))
  parts = {name: sums for name, sums in sorted(totals.items()) if name and sums.tokens}
  accuracies = {f"accuracy_{name}": float(s.correct / s.tokens) for name, s in parts.items()}
  return whole | accuracies if accuracies else whole


def summary(sums: LossSums) -> dict[str, float]:
  """Returns the loss, bits per byte and accuracy of loss sums that are on the host."""
  return {
    "loss": float(sums.nats / sums.tokens),
    "bits_per_byte": bits_per_byte(float(sums.nats), float(sums.bytes)),
    "accuracy": float(sums.correct / sums.tokens),
  }
