"""Checks that the settings of a config are in their ranges."""

import math
from collections.abc import Mapping
from typing import Any


def check_least(config: Any, section: str, least: Mapping[str, float]) -> None:
  """Raises ValueError where a setting is smaller than allowed.

  Args:
    config: an object that has the settings as attributes.
    section: the name of its section, such as config.train, for the message.
    least: the smallest allowed value of each setting, by name.
  """
  for name, smallest in least.items():
    value = getattr(config, name)
    if not value >= smallest:
      raise ValueError(f"{section}.{name}={value} must be at least {smallest}")


def check_ranges(config: Any, section: str, ranges: Mapping[str, tuple[bool, str]]) -> None:
  """Raises ValueError where a setting is not finite or not in its range.

  Args:
    config: an object that has the settings as attributes.
    section: the name of its section, such as config.train, for the message.
    ranges: by name of a setting, whether it is in its range, and the range in words.
  """
  for name, (fits, allowed) in ranges.items():
    value = getattr(config, name)
    if not (fits and math.isfinite(value)):
      raise ValueError(f"{section}.{name}={value} must be finite and {allowed}")
