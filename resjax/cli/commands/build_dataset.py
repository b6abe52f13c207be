"""Builds the corpora, the tokenizer and the packed rows of a config, and shows their sizes.

  resjax build_dataset --config=base

Training builds missing data by itself. This command builds them ahead of time, on a machine without
accelerators, so that you can look at the counts before anything is trained.

  resjax build_dataset --config=base --list --runs=runs
  resjax build_dataset --config=base --prune --runs=runs,/shared/runs

--list shows what was built below config.data.root: sizes, ages, and which of the runs below --runs
use it. --prune shows the same and deletes what none of them uses; name all folders that hold runs
with this root, since others are not known.
"""

import functools

from absl import flags

from resjax.base import locations, terminal
from resjax.cli import command
from resjax.data import build_and_show
from resjax.train import experiment
from resjax.train.runs import Use, data_use

_CONFIG = command.define_config("The config whose data to build.")
_LIST = flags.DEFINE_bool("list", False, "Only list what was built, and which runs use it.")
_PRUNE = flags.DEFINE_bool("prune", False, "Delete what no run below --runs uses.")
_RUNS = flags.DEFINE_list("runs", [], "Folders below which runs lie, for --list and --prune.")

_MOST_RUNS = 3  # named for each folder


def main() -> None:
  """Builds `config.data` of the command line, or lists or prunes what was built."""
  config = experiment.data_config(command.config_value(_CONFIG))
  if not (_LIST.value or _PRUNE.value):
    build_and_show(config)
    return
  if not _RUNS.value:
    raise ValueError(
      "--list and --prune need --runs, the folders below which runs lie: --runs=runs"
    )
  places = [locations.path(place, "--runs") for place in _RUNS.value]
  _show((data_use.prune if _PRUNE.value else data_use.find)(config.root, places), config.root)


def _show(found: Use, root: str) -> None:
  console = terminal.console()
  table = terminal.Table("folder", numbers=("MB", "days old"), title=f"built data below {root}")
  table.add_column("used by")
  for folder in found.folders:
    more = len(folder.runs) - _MOST_RUNS
    users = [*folder.runs[:_MOST_RUNS], *[f"{more} more"] * (more > 0)]
    cells = f"{folder.bytes / 1e6:,.2f}", f"{folder.days:,.1f}", ", ".join(users) or "no run"
    table.add_row(folder.name, *cells)
  console.print(table)
  for text in found.unknown:
    terminal.say(console, f"not known: {text}")
  size = sum(folder.bytes for folder in found.unused) / 1e6
  did = "they are deleted" if _PRUNE.value else "--prune deletes such folders"
  terminal.say(
    console,
    f"{len(found.unused)} folders of {len(found.folders)}, {size:,.2f} MB, are used by none of the "
    f"{found.runs} runs below {', '.join(_RUNS.value)}; {did}",
  )


run = functools.partial(command.run, main)
