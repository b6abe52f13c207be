"""Settings of the checkpoints of a run."""

import dataclasses

from resjax.ranges import check_least


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
  """Settings of the checkpoints; the meaning of each field stands in configs/base.py.

  Raises:
    ValueError: a setting out of range.
  """

  every: int
  minutes: float
  keep_last: int
  keep_every: int
  verify: bool
  strict: bool

  def __post_init__(self):
    """Checks the ranges."""
    for name in ("every", "minutes", "keep_every"):
      check_least(self, "config.checkpoint", name, 0)
    check_least(self, "config.checkpoint", "keep_last", 1)
