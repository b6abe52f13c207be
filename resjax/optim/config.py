"""Settings of the optimizer."""

import dataclasses
import math

_NAMES = ("adamw", "muon")
_SCHEDULES = ("cosine", "wsd", "constant")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
  """Settings of `config.optim`.

  Attributes:
    name: adamw | muon, which is Muon for the matrices of the layers and AdamW for all else.
    learning_rate: the peak.
    schedule: cosine | wsd | constant, after the warm-up.
    warmup_steps: steps of the linear warm-up, the last of which has the peak.
    decay_fraction: share of all steps in the final decay of wsd.
    final_fraction: of the peak, at the last step of cosine and wsd.
    b1: decay rate of Adam's mean of gradients.
    b2: decay rate of Adam's mean of squared gradients.
    eps: added to the root of the latter.
    weight_decay: times the learning rate, is taken off a decayed parameter in every step.
    muon_momentum: decay rate of Muon's mean of gradients.
    combinator_lr_multiplier: factor on the learning rate of the combinator's parameters; 0: they
      stay as they are.
    clip_norm: largest global norm of a gradient; 0: no clipping.

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

  def __post_init__(self):
    for name, choices in {"name": _NAMES, "schedule": _SCHEDULES}.items():
      value, allowed = getattr(self, name), " | ".join(choices)
      if value not in choices:
        raise ValueError(f"config.optim.{name} is {value!r}; allowed: {allowed}")
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
    for name, (fits, allowed) in ranges.items():
      value = getattr(self, name)
      if not (fits and math.isfinite(value)):
        raise ValueError(f"config.optim.{name} is {value}; it must be finite and {allowed}")
