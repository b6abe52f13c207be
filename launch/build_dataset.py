"""Builds the corpora, the tokenizer and the packed rows of a config, and shows what there is.

  python -m launch.build_dataset --config=configs/base.py

Training builds what is missing by itself; this command does it ahead of time, on a machine without
accelerators, and lets one look at the counts before anything is trained.
"""

import sys
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import config_flags

from resjax import experiment
from resjax.data.config import DataConfig
from resjax.data.report import build_and_show

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to build.", lock_config=True)


def main(argv: list[str]) -> None:
  """Builds `config.data`; a mistake of the user is one line and exit code 1."""
  if len(argv) > 1:
    _fail(f"unexpected argument {argv[1]!r}; settings look like --config.data.root=x")
  try:
    if _CONFIG.value is None:
      raise ValueError("no config; give one, for example --config=configs/base.py")
    values = _CONFIG.value.data.to_dict()
    build_and_show(experiment.to_dataclass(DataConfig, values, "config.data"))
  except (ValueError, OSError) as error:
    _fail(error)
  except KeyboardInterrupt:
    print("interrupted; finished parts are kept, run the same command to go on", file=sys.stderr)
    sys.exit(130)


def parse_flags(argv: list[str]) -> list[str]:
  """Parses the command line; a setting that does not exist is one line too."""
  try:
    rest = app.parse_flags_with_usage(argv)
  except (AttributeError, KeyError) as error:
    reason = error
    while isinstance(reason, BaseException):  # ml_collections raises one around another
      reason = reason.args[0]
    _fail(f"no such setting: {' '.join(str(reason).split())}")
  if flags.FLAGS["verbosity"].using_default_value:
    flags.FLAGS.verbosity = logging.WARNING  # TFDS logs every step as info
  return rest


def _fail(message: object) -> NoReturn:
  print(f"error: {message}", file=sys.stderr)
  sys.exit(1)


if __name__ == "__main__":
  app.run(main, flags_parser=parse_flags)
