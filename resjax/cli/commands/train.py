"""Trains what a config describes, from the newest checkpoint of its workdir if there is one.

  resjax train --config=tiny
  resjax train --config=tiny --config.model.residual.name=attn_res \\
    --config.workdir=runs/attn_res
  resjax train --config=tiny --dry_run

The same command in several processes is one run; `resjax.base.processes.initialize` says how they
find each other. --dry_run prints what the command would do, and writes nothing.
"""

import functools

import jax
from absl import flags

from resjax.base import processes
from resjax.cli import command

_CONFIG = command.define_config("The config to train.")
_DRY_RUN = flags.DEFINE_bool(
  "dry_run",
  False,
  "Prints settings, parameters with shardings, FLOPs, bytes per device and rows per process; "
  "builds no data and writes nothing.",
)
_PROFILE = flags.DEFINE_string(
  "profile_steps", "", "FIRST:LAST, such as 10:13: trace these steps and their memory with xprof."
)
_BRINGUP = flags.DEFINE_integer(
  "bringup_seconds", 300, "Seconds that a process waits for the others at the start.", lower_bound=1
)
_HEARTBEAT = flags.DEFINE_integer(
  "heartbeat_seconds",
  100,
  "Seconds without a sign of life of a process after which all others end.",
  lower_bound=1,
)


def main() -> None:
  """Trains the config of the command line, or with --dry_run prints what that would be."""
  config = command.config_value(_CONFIG)
  # --help and mistakes on the command line need nothing of this, which takes a second to import.
  from resjax.train import dry_run, experiment, parse_steps, train

  processes.initialize(bringup_seconds=_BRINGUP.value, heartbeat_seconds=_HEARTBEAT.value)
  run = experiment.build(config)
  profile_steps = parse_steps(_PROFILE.value, run.train.steps)
  if not _DRY_RUN.value:
    train(run, profile_steps=profile_steps)
  elif jax.process_index() == 0:
    dry_run.dry_run(run)
  processes.shutdown()


run = functools.partial(command.run, main, folder=command.config_workdir)
