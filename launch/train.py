"""Trains what a config describes, from the newest checkpoint of its workdir if there is one.

  python -m launch.train --config=configs/tiny.py
  python -m launch.train --config=configs/tiny.py --config.model.residual.name=attn_res \
    --config.workdir=runs/attn_res
"""

from launch import cli
from resjax import experiment
from resjax.train.loop import train

_CONFIG = cli.define_config("What to train.")


def main() -> None:
  """Trains the config of the command line."""
  train(experiment.build(cli.config_value(_CONFIG)))


if __name__ == "__main__":
  cli.run(main)
