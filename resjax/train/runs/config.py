"""The settings of a run, checked before anything is built."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from resjax.base import AS_SEED, check_least, check_ranges, check_seed, check_type, check_types
from resjax.base.hardware import compiler_options
from resjax.base.sharding import Layout
from resjax.data import DataConfig
from resjax.models import DecoderConfig
from resjax.train.checkpoint.config import CheckpointConfig
from resjax.train.optim import OptimizerConfig, Scaling


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """The settings of the training loop; configs/base.py says what each field means.

  Raises:
    ValueError: a setting is out of range, batch_size is not divisible by microbatches, or
      compiler_options has another form than `compiler_options.check` says.
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
  # Records of earlier runs have no such settings.
  goodput_job: str = ""
  compiler_options: str = "auto"
  hf_ignore: tuple[str, ...] = ()
  router_balance_loss: float = 0.01
  router_z_loss: float = 1e-3
  router_bias_rate: float = 1e-3

  def __post_init__(self) -> None:
    check_types(self, "config.train")
    positive = ("steps", "batch_size", "microbatches", "loss_chunk", "log_every", "alignment_rows")
    others = (
      "z_loss", "eval_every", "eval_rows", "alignment_every", "sample_tokens",
      "router_balance_loss", "router_z_loss", "router_bias_rate",
    )  # fmt: skip
    check_least(self, "config.train", dict.fromkeys(positive, 1) | dict.fromkeys(others, 0))
    if self.batch_size % self.microbatches:
      raise ValueError(
        f"config.train.batch_size={self.batch_size} is not divisible by "
        f"config.train.microbatches={self.microbatches}"
      )
    compiler_options.check(self.compiler_options)


# The guard keeps so many values whatever the window is, so that a resumed run may change it.
MAX_SPIKE_WINDOW = 1024


@dataclasses.dataclass(frozen=True)
class HealthConfig:
  """The settings of the step guard and the watchdog; configs/base.py says what each field means.

  Raises:
    ValueError: a setting is infinite, NaN or out of range.
  """

  skip_nonfinite: bool
  spike_window: int
  spike_sigma: float
  max_skipped: int
  watchdog_seconds: float
  max_update: float = 0.0  # Records of earlier runs have no such setting.

  def __post_init__(self) -> None:
    check_types(self, "config.health", ranged=True)
    ranges = {
      "max_update": (self.max_update >= 0, "0 (no test) or more"),
      "spike_window": (2 <= self.spike_window <= MAX_SPIKE_WINDOW, f"in 2..{MAX_SPIKE_WINDOW}"),
      "spike_sigma": (self.spike_sigma >= 0, "0 (no test) or more"),
      "max_skipped": (self.max_skipped >= 1, "at least 1"),
      "watchdog_seconds": (self.watchdog_seconds >= 0, "0 (off) or more"),
    }
    check_ranges(self, "config.health", ranges)

  @property
  def guards_steps(self) -> bool:
    """Whether any step may be skipped."""
    return self.skip_nonfinite or self.spike_sigma > 0

  @property
  def guards_updates(self) -> bool:
    """Whether the run may end because of the state that a step leaves."""
    return self.skip_nonfinite or self.max_update > 0


class Seeds(NamedTuple):
  """What the random numbers of a run start from.

  Attributes:
    init: the seed of the initial parameters.
    order: the seed of the order of the data.
  """

  init: int
  order: int


@dataclasses.dataclass(frozen=True)
class Run:
  """Everything that a training run needs to know.

  Attributes:
    workdir: the folder of the run: metrics, checkpoints, plots, and the config.
    seed: the seed of the initial parameters and of the order of the data, where they have none of
      their own.
    init_seed: the seed of the initial parameters; `AS_SEED`: seed.
    decoder: the model; before the data are built, its vocabulary is the largest that the
      tokenizer may have.
    data: the corpora, the tokenizer, and the length of rows.
    optim: the optimizer and the learning rate.
    train: the training loop.
    health: which steps are skipped, and when a run counts as stalled.
    checkpoint: when the state is saved, what is kept, and what is checked.
    layout: the mesh of devices, and which of its axes split which logical axis.
    resolved: the whole config as plain JSON values, for the record of the run.

  Raises:
    ValueError: the workdir is empty, or a seed is out of range.
  """

  workdir: str
  seed: int
  init_seed: int
  decoder: DecoderConfig
  data: DataConfig
  optim: OptimizerConfig
  train: TrainConfig
  health: HealthConfig
  checkpoint: CheckpointConfig
  layout: Layout
  resolved: Mapping[str, Any]

  def __post_init__(self) -> None:
    check_type(self.workdir, str, "config.workdir")
    if not self.workdir.strip():
      raise ValueError(f"config.workdir={self.workdir!r} names no folder; give one, as runs/tiny")
    check_seed(self.seed, "config.seed")
    check_seed(self.init_seed, "config.init_seed", AS_SEED)

  @property
  def seeds(self) -> Seeds:
    """The seeds of its random numbers."""
    own = Seeds(self.init_seed, self.data.order_seed)
    return Seeds(*[self.seed if seed == AS_SEED else seed for seed in own])

  @property
  def scaling(self) -> Scaling:
    """How many times as large the model is as the one that the learning rates were tuned for."""
    return Scaling(self.decoder.width_ratio, self.decoder.depth_ratio)

  @property
  def compiler_options(self) -> Mapping[str, str]:
    """The compiler's options for its steps on its devices, by name."""
    layout = self.layout
    return compiler_options.resolve(
      self.train.compiler_options, layout.platform, layout.device.device_kind
    )

  def with_vocab_size(self, vocab_size: int) -> "Run":
    """Returns the run with the vocabulary that its data turned out to have."""
    decoder = dataclasses.replace(self.decoder, vocab_size=vocab_size)
    return dataclasses.replace(self, decoder=decoder)
