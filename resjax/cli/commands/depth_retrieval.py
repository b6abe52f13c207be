"""Measures which residual systems can give back, at the end, what one layer has written.

  resjax depth_retrieval --out=runs/retrieval
  resjax depth_retrieval --systems=standard,gate:granularity=token,attn_res --out=DIR
  resjax depth_retrieval --task=fixed:3,marked --layers=7,15 --seeds=0,1,2,3,4 --out=DIR

Source j = 0..L writes one of 32 symbols and a tag of its own: source 0 is the embedding, source j
layer j, whatever it reads. Asked is, from the last state through a norm and a linear map, for the
symbol of source j (fixed:J) or of the source that bears a mark. Trained are the combinator alone
and that map. docs/findings/depth_retrieval.md has the result for every system.

--systems takes NAME[:OPTION=VALUE...], and with /read behind it what one more site would read in
place of the output. All tasks and seeds of a system train in one program. results.json in --out
keeps each run, and runs that are there are not repeated. The table has what was asked for, a plot
all that is there of its number of layers.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from absl import flags

from resjax.base import locations, terminal
from resjax.cli import command
from resjax.study.analysis.depth_retrieval import (
  Cell,
  Results,
  Setup,
  System,
  Task,
  every_system,
  training,
)
from resjax.study.analysis.depth_retrieval import results as kept

_SYSTEMS = flags.DEFINE_list("systems", ["all"], "Combinators with options; all: every one.")
_TASKS = flags.DEFINE_list(
  "task", ["fixed:0", "fixed:3", "fixed:7", "marked"], "What is asked for."
)
_LAYERS = flags.DEFINE_list("layers", ["7"], "Numbers of layers L; there are L + 1 sources.")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2", "3", "4"], "Seeds of all that is drawn.")
_OUT = flags.DEFINE_string("out", None, "Folder to write results.json and plots to.")

_MOST_LAYERS, _MOST_SEED = 64, 2**31 - 1
_T = TypeVar("_T")


def main() -> None:
  """Trains the missing runs, and shows the results of all requested ones."""
  if not _OUT.value:
    raise ValueError("no folder for the results; give one, for example --out=runs/retrieval")
  tasks = _each(_TASKS, Task.parse)
  systems = every_system() if _SYSTEMS.value == ["all"] else _each(_SYSTEMS, System.parse)
  depths = [_number("--layers", text, 1, _MOST_LAYERS) for text in _each(_LAYERS, str)]
  seeds = [_number("--seeds", text, 0, _MOST_SEED) for text in _each(_SEEDS, str)]
  for num_layers in depths:
    for system in systems:
      training.check(system, num_layers, tasks, Setup())
  folder = locations.path(_OUT.value, "--out", writable=True)
  locations.make_folder(folder, "--out")
  found = Results.load(folder, Setup())
  console = terminal.console()
  for num_layers in depths:
    for system in systems:
      with terminal.console(stderr=True).status(f"training {system} with {num_layers} layers"):
        new = _missing(found, system, num_layers, tasks, seeds)
      if new:
        found = found.with_cells(new)
        found.save(folder)
  files = [found.save(folder)]
  for num_layers in depths:
    kept.show(found, systems, num_layers, tasks, console)
    files.append(folder / f"layers_{num_layers}.png")
    kept.plot(found, num_layers, files[-1])
  console.print(f"{sum(cell.cpu_seconds for cell in found.cells):,.0f} s of CPU time for all runs")
  for file in files:
    console.print(str(file), soft_wrap=True)


def _missing(
  found: Results, system: System, num_layers: int, tasks: Sequence[Task], seeds: Sequence[int]
) -> list[Cell]:
  """Trains the missing runs of a system, all missing seeds of a task at once."""
  have = {cell.key for cell in found.cells}
  by_seeds: dict[tuple[int, ...], list[Task]] = {}
  for task in tasks:
    missing = (s for s in seeds if (str(system), num_layers, str(task), s) not in have)
    by_seeds.setdefault(tuple(missing), []).append(task)
  cells = []
  for some, their in by_seeds.items():
    if not some:
      continue
    start = time.process_time()
    values = training.accuracies(system, num_layers, their, some, Setup())
    share = round((time.process_time() - start) / values.size, 3)
    for task, row in zip(their, values.tolist(), strict=True):
      for seed, value in zip(some, row, strict=True):
        cells.append(Cell(str(system), num_layers, str(task), seed, round(value, 6), share))
  return cells


def _each(flag: flags.FlagHolder, parse: Callable[[str], _T]) -> list[_T]:
  """Returns what each part of a flag means, without repetitions.

  Raises:
    ValueError: it has no parts.
  """
  if not flag.value:
    raise ValueError(f"--{flag.name} is empty; give one or more, with commas between them")
  return list(dict.fromkeys(map(parse, flag.value)))


def _number(flag: str, text: str, least: int, most: int) -> int:
  if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
    raise ValueError(f"{flag}={text} must be a whole number in {least}..{most}")
  return int(text)


run = functools.partial(command.run, main)
