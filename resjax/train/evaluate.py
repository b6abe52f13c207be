"""Evaluation on a held-out split."""

from collections.abc import Callable

import jax

from resjax.data.pipeline import evaluation_batches
from resjax.data.summary import DatasetSummary
from resjax.losses import LossSums
from resjax.metrics import bits_per_byte
from resjax.processes.signals import StopRequest
from resjax.records.time_ledger import Ledger
from resjax.sharding import Layout
from resjax.train.step import Batch
from resjax.typing import Array, PyTree


def evaluate(
  eval_step: Callable[[PyTree, Batch, Array], LossSums],
  params: PyTree,
  dataset: DatasetSummary,
  layout: Layout,
  token_bytes: Array,
  stop: StopRequest,
  ledger: Ledger,
  *,
  split: str,
  batch_size: int,
  max_rows: int,
) -> dict[str, float] | None:
  """Returns loss (nats per token), bits per byte and accuracy over rows of a split.

  Args:
    eval_step: of `make_eval_step`.
    params: of the model.
    dataset: the built data.
    layout: where batches lie.
    token_bytes: [V] bytes that each token stands for.
    stop: is given a tick per batch.
    ledger: is given the time of each batch.
    split: `train`, `validation` or `test`.
    batch_size: rows per step over all devices.
    max_rows: evenly spaced rows of the split; 0: all.

  Returns:
    the three under `loss`, `bits_per_byte`, `accuracy`; None if the run is to stop first.
  """
  options = {"batch_size": batch_size, "max_rows": max_rows, "rows": layout.rows(batch_size)}
  total, running = LossSums.zeros(), LossSums.zeros()
  for batch in evaluation_batches(dataset, split, **options):
    with ledger.phase("eval"):
      before, running = running, eval_step(params, layout.put(batch, batch_size), token_bytes)
      # Waits for the batch before, so that a stop need not wait for more than one.
      total = total + jax.device_get(before)
    if stop.tick():
      return None
  return summary(jax.device_get(total + jax.device_get(running)))


def summary(sums: LossSums) -> dict[str, float]:
  """Returns loss, bits per byte and accuracy of loss sums that are on the host."""
  return {
    "loss": float(sums.nats / sums.tokens),
    "bits_per_byte": bits_per_byte(sums.nats, sums.bytes),
    "accuracy": float(sums.correct / sums.tokens),
  }
