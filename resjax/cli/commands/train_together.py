"""Trains several runs of a small model in one program: seeds or learning rates side by side.

  resjax train_together --config=tiny \\
    --run="workdir=runs/seed_0 seed=0" --run="workdir=runs/seed_1 seed=1"

Each --run names the settings of one run that differ: its workdir, and seed, init_seed,
data.order_seed or optim.learning_rate. Folders, records and checkpoints are as of single runs.
The same command goes on after a stop. Small models keep a GPU busy only together.
"""

import functools
import shlex

from absl import flags
from ml_collections import ConfigDict

from resjax.cli import command
from resjax.train.runs import same_program

_CONFIG = command.define_config("The config that the runs share.")
_RUN = flags.DEFINE_multi_string("run", [], "KEY=VALUE of each setting of one run; once per run.")


def main() -> None:
  """Trains the runs of the command line."""
  config = command.config_value(_CONFIG)
  if len(_RUN.value) < 2:
    raise ValueError('give --run="workdir=FOLDER seed=NUMBER" for each of two or more runs')
  configs = [_override(config, text) for text in _RUN.value]
  from resjax.train import experiment, together

  together.train([experiment.build(one) for one in configs])


def _override(config: ConfigDict, text: str) -> ConfigDict:
  """Returns the config of a run, with the settings of the value of its flag."""
  made = config.copy_and_resolve_references()
  try:
    words = shlex.split(text)
  except ValueError as error:
    raise ValueError(f"--run={text!r}: {error}") from None
  for word in words:
    key, equals, value = word.partition("=")
    if not equals or key not in same_program.FREE:
      raise ValueError(
        f"--run={text!r}: {word!r} is not KEY=VALUE of {', '.join(same_program.FREE)}"
      )
    try:
      made.update_from_flattened_dict({key: same_program.FREE[key](value)})
    except ValueError:
      raise ValueError(f"--run={text!r}: {word!r} has no number") from None
  return made


run = functools.partial(command.run, main, folder=command.config_workdir)
