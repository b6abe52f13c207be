"""Builds the corpora, the tokenizer and the packed rows of a config, and shows what there is.

  python -m launch.build_dataset --config=configs/base.py

Training builds what is missing by itself; this command does it ahead of time, on a machine without
accelerators, and lets one look at the counts before anything is trained.
"""

from launch import cli
from resjax import experiment
from resjax.data.build_table import build_and_show
from resjax.data.config import DataConfig

_CONFIG = cli.define_config("What to build.")


def main() -> None:
  """Builds `config.data` of the command line."""
  values = cli.config_value(_CONFIG).data.to_dict()
  build_and_show(experiment.to_dataclass(DataConfig, values, "config.data"))


if __name__ == "__main__":
  cli.run(main)
