"""Trains what a config describes, from the newest checkpoint of its workdir if there is one.

  python -m launch.train --config=configs/tiny.py
  python -m launch.train --config=configs/tiny.py --config.model.residual.name=attn_res \
    --config.workdir=runs/attn_res
  python -m launch.train --config=configs/tiny.py --dry_run   (what it would do; writes nothing)
"""

from absl import flags

from launch import cli
from resjax import experiment
from resjax.train.dry_run import dry_run
from resjax.train.loop import train

_CONFIG = cli.define_config("What to train.")
_DRY_RUN = flags.DEFINE_bool(
  "dry_run",
  False,
  "Prints settings, parameters with shardings, FLOPs, bytes per device and rows per process; "
  "builds no data and writes nothing.",
)


def main() -> None:
  """Trains the config of the command line, or tells what that would be."""
  run = experiment.build(cli.config_value(_CONFIG))
  dry_run(run) if _DRY_RUN.value else train(run)


if __name__ == "__main__":
  cli.run(main)
