"""Builds the corpora, the tokenizer and the packed rows of a config, and shows their sizes.

  resjax build_dataset --config=base

Training builds missing data by itself. This command builds them ahead of time, on a machine without
accelerators, so that you can look at the counts before anything is trained.
"""

from launch import cli
from resjax import experiment
from resjax.data.build_table import build_and_show

_CONFIG = cli.define_config("The config whose data to build.")


def main() -> None:
  """Builds `config.data` of the command line."""
  build_and_show(experiment.data_config(cli.config_value(_CONFIG)))


if __name__ == "__main__":
  cli.run(main)
