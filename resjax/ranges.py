"""Checks of the ranges of settings."""

from typing import Any


def check_least(config: Any, section: str, name: str, least: float) -> None:
  """Raises ValueError where a setting of a section is smaller than allowed."""
  value = getattr(config, name)
  if not value >= least:
    raise ValueError(f"{section}.{name}={value} must be at least {least}")
