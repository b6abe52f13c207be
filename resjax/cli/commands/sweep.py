"""Runs a sweep: the arms that a config file's `sweep(config)` yields, each with several seeds.

  resjax sweep --config=ablations/residuals --seeds=0,1,2
  resjax sweep --config=ablations/residuals --only=standard,attn_res
  resjax sweep --config=ablations/residuals --print_commands
  resjax sweep --config=ablations/residuals --seeds=0,1,2 --collect

Settings on the command line apply to all runs; the overrides of the sweep come on top. Every run
has a folder in config.workdir: ARM, or ARM/seed_SEED. With seeds, all arms of a seed see the same
batches; plan.json is written before the first run, and the arms are compared with the baseline in
paired differences with intervals (docs/comparisons.md). `PLAN` in the file states contrasts, margin
and seeds, and how learning rates are tuned.

The tables are written there as results.json and results.csv, and the plots as sweep, differences
and curves, PNG files, and others with --figures. Finished runs are not repeated, and stopped runs
go on. A failed run does not end the sweep: the table says why it failed, and the exit code is 1.
With --print_commands a scheduler can run the sweep: it prints one command per run, which may run in
any order on any machine that sees the folder; --collect then makes tables and plots. With
--together=N up to N runs that differ in seeds or learning rate alone train in one program, which
small models need to keep a GPU busy.
"""

import functools
import math
import runpy
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

import jax
from absl import flags
from ml_collections import config_flags
from rich.console import Console

from resjax.base import MAX_SEED, terminal
from resjax.cli import command, shipped
from resjax.cli.commands import sweep_runs, sweep_tuning
from resjax.cli.commands.sweep_tuning import Sweep
from resjax.cli.errors import users_place
from resjax.study.analysis import plots
from resjax.study.sweeps import (
  SweepRun,
  comparison,
  comparison_plots,
  comparison_table,
  expand,
  results,
  table,
)
from resjax.study.sweeps import plan as plans
from resjax.train.runs import environment

_CONFIG = command.define_config("The config file of the sweep.")
_PRINT = flags.DEFINE_bool("print_commands", False, "Only print one command for each run.")
_COLLECT = flags.DEFINE_bool("collect", False, "Only make tables and plots of existing runs.")
_ONLY = flags.DEFINE_list("only", [], "Names of the arms to run; default: all arms.")
_SEEDS = flags.DEFINE_list(
  "seeds", [], "Seeds of every arm, such as 0,1,2; default: those of the file, or one run per arm."
)
_BASELINE = flags.DEFINE_string(
  "baseline", "", "The arm that others are compared with; default: that of the file, or the first."
)
_SPREAD = flags.DEFINE_float(
  "spread",
  None,
  "Expected standard deviation of the metric over seeds, which tells what the sweep can show.",
  lower_bound=0,
)
_TITLES = flags.DEFINE_bool("titles", False, "Figures have titles.")
_ALONE = flags.DEFINE_bool(
  "alone", False, "The runs had their machines for themselves, so that their speeds are compared."
)


def main() -> None:
  """Runs, prints or collects the sweep of the command line."""
  if _SPREAD.value is not None and not math.isfinite(_SPREAD.value):
    raise ValueError(f"--spread={_SPREAD.value} must be a finite number")
  if _PRINT.value and _COLLECT.value:
    raise ValueError("--print_commands and --collect exclude each other")
  jax.config.update("jax_platforms", "cpu")  # leaves the accelerators to the runs
  console = terminal.console(stderr=_PRINT.value)
  sweep = _read()
  chosen = _chosen(list(sweep.arms), _ONLY.value)
  if sweep.plan is not None:
    _tell(sweep, console)
    if not _COLLECT.value:
      missing = sweep_tuning.tune(sweep, chosen, None if _PRINT.value else console)
      if missing:
        _print(missing)
        console.print("these runs tune the arms; then the same command prints the others")
        return
  runs = sweep.runs()
  refused = sweep_runs.check(runs)
  todo = [run for run in runs if run.arm in chosen]
  errors = {run.name: refused[run.name] for run in todo if run.name in refused}
  if len(errors) == len(todo):
    raise ValueError(f"run {todo[0].name!r}: {errors[todo[0].name]}")
  if _PRINT.value:
    _print(todo)
    return
  if not _COLLECT.value:
    errors |= sweep_runs.run_all([run for run in todo if run.name not in errors], console)
  _show(sweep, runs, chosen, errors, console)
  if errors:
    sys.exit(1)


def _read() -> Sweep:
  """Returns the sweep of the command line, whose plan is written where it has seeds."""
  config = command.config_value(_CONFIG)
  named = config_flags.get_config_filename(flags.FLAGS[_CONFIG.name]).split(":", 1)[0]
  path = shipped.config_file(named)
  with shipped.imports_of(path):
    file = runpy.run_path(str(path))
  if "sweep" not in file:
    raise ValueError(f"{path} has no sweep(config); choose another, such as ablations/compare")
  seeds = _seeds(_SEEDS.value)
  try:
    arms = {run.arm: dict(run.overrides) for run in expand(config, file["sweep"](config))}
    asked = plans.questions(file.get("PLAN", {}), list(arms), _BASELINE.value, seeds)
    # The baseline runs first, and the others are compared with it.
    arms = {asked.baseline: arms[asked.baseline], **arms}
    runs = expand(config, arms.items(), asked.seeds)
  except ValueError as wrong:
    place = users_place(wrong) or path
    raise ValueError(f"{place}: {wrong}") from None
  if "PLAN" in file and not asked.seeds:
    raise ValueError(f"{path}: PLAN has no seeds; give some, as --seeds=0,1,2")
  sweep = Sweep(config, str(path), arms, file.get("CURVES"))
  if not asked.seeds and (stored := plans.read(sweep.folder)):
    planned = ",".join(map(str, stored.seeds))
    raise ValueError(
      f"{sweep.folder / plans.FILE_NAME} has seeds; give them, as --seeds={planned}, or choose "
      "another config.workdir"
    )
  if asked.seeds:
    # Runs whose settings are still to be tuned are checked when they are known.
    refused = {} if asked.tuning else sweep_runs.check(runs[: len(arms)])
    if len(refused) == len(arms):
      raise ValueError(f"run {runs[0].name!r}: {refused[runs[0].name]}")
    begun = any(map(sweep_runs.begun, runs)) or sweep_tuning.begun(sweep)
    wanted = plans.make(asked, runs, environment.code_version(), time.time())
    sweep.plan = plans.settle(sweep.folder, wanted, begun)
  return sweep


def _tell(sweep: Sweep, console: Console) -> None:
  """Prints the plan, and the smallest effect that the sweep can show."""
  assert sweep.plan is not None
  asked = sweep.plan.questions
  spread = _SPREAD.value or asked.spread
  if spread is None:
    found = [sweep_runs.collect(run, metric=asked.key) for run in sweep.runs()]
    spread = results.spread(found, asked.baseline)
  effects = None
  if spread is not None and len(asked.seeds) > 1 and asked.contrasts:
    effects = comparison.expected(sweep.plan, spread)
  comparison_table.show_plan(sweep.plan, effects, console)


def _show(
  sweep: Sweep,
  runs: Sequence[SweepRun],
  chosen: Sequence[str],
  errors: Mapping[str, str],
  console: Console,
) -> None:
  """Prints and writes the tables, and draws the plots.

  What was neither chosen nor run before is left out of the table that is printed.
  """
  title, folder = f"{sweep.folder}  ({sweep.path})", sweep.folder
  metric = sweep.plan.questions.key if sweep.plan else results.PRIMARY
  found = [sweep_runs.collect(run, errors.get(run.name), metric) for run in runs]
  shown = comparison.make(sweep.plan, found, alone=_ALONE.value) if sweep.plan else None
  if shown is None:
    asked = [r for r in found[1:] if r.arm in chosen or r.status != results.NOT_RUN]
    table.show([found[0], *asked], console)  # all are compared with the first one
  else:
    comparison_table.show(shown, console)
  table.show_errors(found, console)
  files = table.save(found, folder, shown)
  figures = {"sweep": table.figure(found, sweep.curves, title)}
  if shown is not None:
    figures["differences"] = comparison_plots.differences(shown, title)
    figures["curves"] = comparison_plots.curves(found, metric, title)
  for name, figure in figures.items():
    if figure is not None:
      files.append(folder / f"{name}.png")
      plots.save(figure, files[-1], titles=_TITLES.value)
  for file in files:
    console.print(str(file), soft_wrap=True)


def _seeds(words: Iterable[str]) -> list[int]:
  seeds = []
  for word in words:
    if not word.isdecimal() or int(word) > MAX_SEED:
      raise ValueError(f"--seeds={','.join(words)}: {word!r} is no whole number in 0..{MAX_SEED}")
    seeds.append(int(word))
  return seeds


def _chosen(known: list[str], names: list[str]) -> list[str]:
  for name in names:
    if name not in known:
      raise ValueError(f"--only={name}: no such run; the sweep has {', '.join(known)}")
  return [name for name in known if not names or name in names]


def _print(runs: Sequence[SweepRun]) -> None:
  for group in sweep_runs.groups(runs):
    print(shlex.join(["resjax", *sweep_runs.arguments(group), *command.figures()]))


run = functools.partial(command.run, main, folder=command.config_workdir)
