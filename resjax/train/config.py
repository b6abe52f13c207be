"""What a run is made of, checked before anything is built."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resjax.data.config import DataConfig
from resjax.models.config import DecoderConfig
from resjax.optim import OptimizerConfig
from resjax.sharding import MeshConfig, ShardingConfig


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Settings of the loop; the meaning of each field stands in configs/base.py.

  Raises:
    ValueError: a setting out of range.
  """

  init_from: str
  steps: int
  batch_size: int
  microbatches: int
  z_loss: float
  loss_chunk: int
  log_every: int
  eval_every: int
  eval_rows: int
  checkpoint_every: int
  keep_last: int
  sample_tokens: int
  tensorboard: bool
  wandb_project: str

  def __post_init__(self):
    """Checks the ranges."""
    positive = ("steps", "batch_size", "microbatches", "loss_chunk", "log_every")
    for name in (*positive, "checkpoint_every", "keep_last"):
      self._check(name, 1)
    for name in ("z_loss", "eval_every", "eval_rows", "sample_tokens"):
      self._check(name, 0)
    if self.batch_size % self.microbatches:
      raise ValueError(
        f"config.train.batch_size={self.batch_size} is not divisible by "
        f"config.train.microbatches={self.microbatches}"
      )

  def _check(self, name: str, least: int) -> None:
    if getattr(self, name) < least:
      raise ValueError(f"config.train.{name}={getattr(self, name)} must be at least {least}")


@dataclasses.dataclass(frozen=True)
class Run:
  """Everything that a training run needs to know.

  Attributes:
    workdir: folder of this run: metrics, checkpoints, plots, resolved config.
    seed: of the parameters and of the data order.
    decoder: the model; its vocab_size is that of the tokenizer, 1 before the data are built.
    data: corpora, tokenizer, row length.
    optim: optimizer and schedule.
    train: the loop.
    mesh: devices per mesh axis.
    sharding: which mesh axes split what.
    resolved: the whole config as plain JSON values, for the record.
  """

  workdir: str
  seed: int
  decoder: DecoderConfig
  data: DataConfig
  optim: OptimizerConfig
  train: TrainConfig
  mesh: MeshConfig
  sharding: ShardingConfig
  resolved: Mapping[str, Any]

  def with_vocab_size(self, vocab_size: int) -> "Run":
    """Returns the run with the vocabulary that its data turned out to have."""
    decoder = dataclasses.replace(self.decoder, vocab_size=vocab_size)
    return dataclasses.replace(self, decoder=decoder)
