"""The settings of the optimizer."""

import dataclasses
import math

from resjax.base import check_ranges, check_types

_NAMES = ("adamw", "muon")
_SCHEDULES = ("cosine", "wsd", "constant")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
  """The settings of `config.optim`.

  Attributes:
    name: adamw, or muon: Muon for the matrices of the layers and AdamW for all else.
    learning_rate: the peak of the learning rate.
    schedule: cosine, wsd or constant: what follows the warm-up.
    warmup_steps: the number of steps of the linear warm-up; the last of them has the peak. A run
      too short for them takes as many as it has room for, see `schedules.warmup_steps`.
    decay_fraction: the share of all steps that the final decay of wsd takes.
    final_fraction: the learning rate of the last step of cosine and wsd, as a share of the peak.
    b1: the decay rate of Adam's mean of gradients.
    b2: the decay rate of Adam's mean of squared gradients.
    eps: is added to the root of the latter.
    weight_decay: in every step this share, times the learning rate, is taken off a decayed
      parameter.
    muon_momentum: the decay rate of Muon's mean of gradients.
    combinator_lr_multiplier: a factor on the learning rate of the combinator's parameters; 0: they
      do not change.
    clip_norm: the largest global norm of a gradient; 0: no clipping.
    combinator_lr_multipliers: NAME=FACTOR each, a factor beside that of the whole combinator for
      one of its parameters, or for a folder of them.

  Raises:
    ValueError: a setting is out of range.
  """

  name: str
  learning_rate: float
  schedule: str
  warmup_steps: int
  decay_fraction: float
  final_fraction: float
  b1: float
  b2: float
  eps: float
  weight_decay: float
  muon_momentum: float
  combinator_lr_multiplier: float
  clip_norm: float
  combinator_lr_multipliers: tuple[str, ...] = ()  # Records of earlier runs have no such setting.

  def __post_init__(self) -> None:
    for name, choices in {"name": _NAMES, "schedule": _SCHEDULES}.items():
      value, allowed = getattr(self, name), " | ".join(choices)
      if value not in choices:
        raise ValueError(f"config.optim.{name}={value!r} is not known; allowed: {allowed}")
    check_types(self, "config.optim", ranged=True)
    ranges = {
      "learning_rate": (self.learning_rate > 0, "positive"),
      "warmup_steps": (self.warmup_steps >= 0, "0 or more"),
      "decay_fraction": (0 < self.decay_fraction <= 1, "above 0, at most 1"),
      "final_fraction": (0 <= self.final_fraction <= 1, "in 0..1"),
      "b1": (0 <= self.b1 < 1, "at least 0, below 1"),
      "b2": (0 <= self.b2 < 1, "at least 0, below 1"),
      "eps": (self.eps > 0, "positive"),
      "weight_decay": (self.weight_decay >= 0, "0 or more"),
      "muon_momentum": (0 <= self.muon_momentum < 1, "at least 0, below 1"),
      "combinator_lr_multiplier": (self.combinator_lr_multiplier >= 0, "0 or more"),
      "clip_norm": (self.clip_norm >= 0, "0 (no clipping) or more"),
    }
    check_ranges(self, "config.optim", ranges)
    factors = tuple(self.combinator_lr_multipliers)  # a record has a list
    object.__setattr__(self, "combinator_lr_multipliers", factors)
    self.combinator_factors()

  def combinator_factors(self) -> dict[str, float]:
    """Returns the factors of `combinator_lr_multipliers` by name."""
    factors: dict[str, float] = {}
    for text in self.combinator_lr_multipliers:
      name, _, number = text.partition("=")
      try:
        factor = float(number)
      except ValueError:
        factor = math.nan
      if not (name and 0 <= factor < math.inf) or name in factors:
        raise ValueError(
          f"config.optim.combinator_lr_multipliers={self.combinator_lr_multipliers!r}: {text!r}; "
          "allowed: NAME=FACTOR, each name once, factors finite and 0 or more"
        )
      factors[name] = factor
    return factors
