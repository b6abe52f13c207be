"""Warnings about files that are read several times."""

import functools

from absl import logging


@functools.cache
def warn_once(text: str) -> None:
  """Logs a warning that every reader of the same file would repeat."""
  logging.warning("%s", text)
