"""--workdir of commands that have a config: another word for --config.workdir."""

import re
from collections.abc import Sequence


def spelled_out(words: Sequence[str]) -> list[str]:
  """Returns the words of a command line with --config.workdir in place of --workdir."""
  return [re.sub(r"^--?workdir(?==|$)", "--config.workdir", word) for word in words]
