"""Evaluation on a held-out split."""

from collections.abc import Callable, Mapping

import jax

from resjax.data.config import DataConfig
from resjax.data.pipeline import evaluation_batches
from resjax.losses import LossSums
from resjax.metrics import bits_per_byte
from resjax.sharding import Layout
from resjax.train.step import Batch
from resjax.typing import Array, PyTree


def evaluate(
  eval_step: Callable[[PyTree, Batch, Array], LossSums],
  params: PyTree,
  data: DataConfig,
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
    data: what to read.
    layout: where batches lie.
    token_bytes: [V] bytes that each token stands for.
    split: `train`, `validation` or `test`.
    batch_size: rows per step over all devices.
    max_rows: evenly spaced rows of the split; 0: all.
  """
  total = LossSums.zeros()
  batches = evaluation_batches(
    data,
    split,
    batch_size=batch_size,
    max_rows=max_rows,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )
  for batch in batches:
    total = total + eval_step(params, put(batch, layout), token_bytes)
  return summary(jax.device_get(total))


def summary(sums: LossSums) -> dict[str, float]:
  """Returns loss, bits per byte and accuracy of loss sums that are on the host."""
  return {
    "loss": float(sums.nats / sums.tokens),
    "bits_per_byte": bits_per_byte(sums.nats, sums.bytes),
    "accuracy": float(sums.correct / sums.tokens),
  }


def put(batch: Mapping, layout: Layout) -> Batch:
  """Puts this process's rows of a batch, [B / processes, T] arrays, onto the mesh."""
  sharding = layout.sharding("batch", "tokens")
  return {
    name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
  }
