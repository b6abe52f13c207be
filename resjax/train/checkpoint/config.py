"""The settings of checkpoints."""

import dataclasses

from resjax.base import check_least, check_types


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """The settings of checkpoints; configs/base.py says what each field means.

  Raises:
    ValueError: a setting is out of range.
  """

  every: int
  minutes: float
  keep_last: int
  keep_every: int
  verify: bool
  strict: bool

  def __post_init__(self) -> None:
    check_types(self, "config.checkpoint")
    least = {"every": 0, "minutes": 0, "keep_every": 0, "keep_last": 1}
    check_least(self, "config.checkpoint", least)
