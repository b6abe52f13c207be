"""Evaluation on a held-out split."""

from collections.abc import Callable

import jax

from resjax.data.pipeline import evaluation_batches
from resjax.data.summary import DatasetSummary
from resjax.losses import LossSums
from resjax.metrics import bits_per_byte
from resjax.sharding import Layout
from resjax.train.step import Batch
from resjax.typing import Array, PyTree


def evaluate(
  eval_step: Callable[[PyTree, Batch, Array], LossSums],
  params: PyTree,
  dataset: DatasetSummary,
  layout: Layout,
  token_bytes: Array,
  *,
  split: str,
  batch_size: int,
  max_rows: int,
) -> dict[str, float]:
  """Returns loss (nats per token), bits per byte and accuracy over rows of a split.

  Args:
    eval_step: of `make_eval_step`.
    params: of the model.
    dataset: the built data.
    layout: where batches lie.
    token_bytes: [V] bytes that each token stands for.
    split: `train`, `validation` or `test`.
    batch_size: rows per step over all devices.
    max_rows: evenly spaced rows of the split; 0: all.
  """
  total = LossSums.zeros()
  for rows in evaluation_batches(dataset, split, batch_size=batch_size, max_rows=max_rows):
    total = total + eval_step(params, layout.put(rows), token_bytes)
  return summary(jax.device_get(total))


def summary(sums: LossSums) -> dict[str, float]:
  """Returns loss, bits per byte and accuracy of loss sums that are on the host."""
  return {
    "loss": float(sums.nats / sums.tokens),
    "bits_per_byte": bits_per_byte(sums.nats, sums.bytes),
    "accuracy": float(sums.correct / sums.tokens),
  }
