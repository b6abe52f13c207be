"""What a run is made of, checked before anything is built."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from resjax.checkpoint.config import CheckpointConfig
from resjax.data.config import DataConfig
from resjax.models.config import DecoderConfig
from resjax.optim import OptimizerConfig
from resjax.ranges import check_least
from resjax.sharding import Layout


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
  alignment_every: int
  alignment_rows: int
  sample_tokens: int
  tensorboard: bool
  wandb_project: str

  def __post_init__(self):
    """Checks the ranges."""
    positive = ("steps", "batch_size", "microbatches", "loss_chunk", "log_every", "alignment_rows")
    for name in positive:
      check_least(self, "config.train", name, 1)
    for name in ("z_loss", "eval_every", "eval_rows", "alignment_every", "sample_tokens"):
      check_least(self, "config.train", name, 0)
    if self.batch_size % self.microbatches:
      raise ValueError(
        f"config.train.batch_size={self.batch_size} is not divisible by "
        f"config.train.microbatches={self.microbatches}"
      )


# Values that the guard keeps, whatever the window, so that a run that resumes may change it.
MAX_SPIKE_WINDOW = 1024


@dataclasses.dataclass(frozen=True)
class HealthConfig:
  """Settings of the step guard and the watchdog; their meaning stands in configs/base.py.

  Raises:
    ValueError: a setting out of range.
  """

  skip_nonfinite: bool
  spike_window: int
  spike_sigma: float
  max_skipped: int
  watchdog_seconds: float

  def __post_init__(self):
    """Checks the ranges."""
    ranges = {
      "spike_window": (2 <= self.spike_window <= MAX_SPIKE_WINDOW, f"in 2..{MAX_SPIKE_WINDOW}"),
      "spike_sigma": (self.spike_sigma >= 0, "0 (no test) or more"),
      "max_skipped": (self.max_skipped >= 1, "at least 1"),
      "watchdog_seconds": (self.watchdog_seconds >= 0, "0 (off) or more"),
    }
    for name, (fits, allowed) in ranges.items():
      value = getattr(self, name)
      if not (fits and math.isfinite(value)):
        raise ValueError(f"config.health.{name}={value} must be finite and {allowed}")

  @property
  def guards_steps(self) -> bool:
    """Whether any step may be skipped."""
    return self.skip_nonfinite or self.spike_sigma > 0


@dataclasses.dataclass(frozen=True)
class Run:
  """Everything that a training run needs to know.

  Attributes:
    workdir: folder of this run: metrics, checkpoints, plots, resolved config.
    seed: of the parameters and of the data order.
    decoder: the model; before the data are built, its vocabulary is the largest that the
      tokenizer may have.
    data: corpora, tokenizer, row length.
    optim: optimizer and schedule.
    train: the loop.
    health: what keeps it from going wrong.
    checkpoint: when the state is saved, what is kept, what is checked.
    layout: the mesh of its devices, and which mesh axes split what.
    resolved: the whole config as plain JSON values, for the record.
  """

  workdir: str
  seed: int
  decoder: DecoderConfig
  data: DataConfig
  optim: OptimizerConfig
  train: TrainConfig
  health: HealthConfig
  checkpoint: CheckpointConfig
  layout: Layout
  resolved: Mapping[str, Any]

  def with_vocab_size(self, vocab_size: int) -> "Run":
    """Returns the run with the vocabulary that its data turned out to have."""
    decoder = dataclasses.replace(self.decoder, vocab_size=vocab_size)
    return dataclasses.replace(self, decoder=decoder)
