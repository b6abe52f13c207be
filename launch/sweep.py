"""Runs a sweep: one after another the runs that a config file's `sweep(config)` yields.

  python -m launch.sweep --config=configs/ablations/residuals.py
  python -m launch.sweep --config=configs/ablations/residuals.py --only=standard,attn_res
  python -m launch.sweep --config=configs/ablations/residuals.py --print_commands
  python -m launch.sweep --config=configs/ablations/residuals.py --collect

Settings on the command line apply to all runs; the overrides of the sweep come on top. Every run
has a folder in config.workdir. The table is written there as results.json and results.csv, and the
plot as sweep.png. Finished runs are not repeated, and stopped runs go on. A failed run does not end
the sweep: the table says why it failed, and the exit code is 1. With --print_commands a scheduler
can run the sweep: it prints one command per run, which may run in any order on any machine that
sees the folder; --collect then makes table and plot.
"""

import dataclasses
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import jax
from absl import flags
from ml_collections import config_flags
from rich.console import Console

from launch import cli
from resjax import experiment, terminal
from resjax.analysis import sweep_table
from resjax.analysis.sweep_table import Result, SweepRun
from resjax.processes.signals import SIGINT_CODE, Interrupted
from resjax.records.metrics_log import FILE_NAME, read_metrics
from resjax.runs import workdir
from resjax.runs.config import Run

_CONFIG = cli.define_config("The config file of the sweep.")
_PRINT = flags.DEFINE_bool("print_commands", False, "Only print one command for each run.")
_COLLECT = flags.DEFINE_bool("collect", False, "Only make table and plot of existing runs.")
_ONLY = flags.DEFINE_list("only", [], "Names of the runs to do; default: all runs.")
_ANY_MESH = {"data": -1, "fsdp": 1, "tensor": 1, "sequence": 1}


def main() -> None:
  """Runs, prints or collects the sweep of the command line."""
  if _PRINT.value and _COLLECT.value:
    raise ValueError("--print_commands and --collect exclude each other")
  jax.config.update("jax_platforms", "cpu")  # leaves the accelerators to the runs
  config = cli.config_value(_CONFIG)
  path = config_flags.get_config_filename(flags.FLAGS[_CONFIG.name]).split(":", 1)[0]
  module = runpy.run_path(path)
  if "sweep" not in module:
    raise ValueError(f"{path} has no sweep(config); choose one of configs/ablations")
  try:
    runs = sweep_table.expand(config, module["sweep"](config))
  except ValueError as wrong:
    raise ValueError(f"{path}: {wrong}") from None
  chosen = _chosen(runs, _ONLY.value)
  refused = {run.name: error for run in runs if (error := _check(run)) is not None}
  errors = {run.name: refused[run.name] for run in chosen if run.name in refused}
  if len(errors) == len(chosen):
    raise ValueError(f"run {chosen[0].name!r}: {errors[chosen[0].name]}")
  if _PRINT.value:
    for run in chosen:
      print(shlex.join(["python", *_arguments(run)]))
    return
  console = terminal.console()
  if not _COLLECT.value:
    errors |= _run_all([run for run in chosen if run.name not in errors], console)
  results = [_collect(run, errors.get(run.name)) for run in runs]
  folder = workdir.place(config.workdir)
  sweep_table.show(results, console)
  files = sweep_table.save(results, folder)
  files.append(sweep_table.plot(results, module.get("CURVES"), f"{folder}  ({path})", folder))
  for file in filter(None, files):
    console.print(str(file), soft_wrap=True)
  if errors:
    sys.exit(1)


def _chosen(runs: list[SweepRun], names: list[str]) -> list[SweepRun]:
  known = [run.name for run in runs]
  for name in names:
    if name not in known:
      raise ValueError(f"--only={name}: no such run; the sweep has {', '.join(known)}")
  return [run for run in runs if not names or run.name in names]


def _run_all(runs: list[SweepRun], console: Console) -> dict[str, str]:
  """Returns the errors of the runs that failed, by name."""
  errors = {}
  for number, run in enumerate(runs, 1):
    title = f"run {number} of {len(runs)}: {run.name}"
    if _collect(run).status == sweep_table.DONE:
      console.print(f"{title} is done")
      continue
    console.rule(title)
    error = _run(run)
    if error is not None:
      errors[run.name] = error
  return errors


def _run(run: SweepRun) -> str | None:
  """Trains one run in a process of its own, and returns its error in one line, or None."""
  command = [sys.executable, *_arguments(run)]
  process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace")
  # Ctrl-C reaches the run too, which saves; this process then waits for its end.
  handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
  last = ""
  try:
    assert process.stderr is not None
    for line in process.stderr:
      print(line, end="", file=sys.stderr, flush=True)
      last = line.strip() or last
    code = process.wait()
  finally:
    signal.signal(signal.SIGINT, handler)
  if code in (SIGINT_CODE, -signal.SIGINT):
    raise Interrupted(
      f"the sweep stopped in run {run.name}; the same command goes on, with --collect it shows "
      "what there is",
      SIGINT_CODE,
    )
  if code < 0:
    return f"ended by signal {-code} ({signal.Signals(-code).name})"
  return (last.removeprefix("error: ") or f"exit code {code}") if code else None


def _arguments(run: SweepRun) -> list[str]:
  """Returns the arguments of Python that train a run: its file, and all settings changed."""
  flag = flags.FLAGS[_CONFIG.name]
  settings = {**config_flags.get_override_values(flag), **run.overrides}
  settings["workdir"] = run.config.workdir
  arguments = ["-m", "launch.train", f"--config={config_flags.get_config_filename(flag)}"]
  return arguments + [f"--config.{key}={value}" for key, value in settings.items()]


def _check(run: SweepRun) -> str | None:
  """Returns in one line why a run cannot be built, or None if it can.

  Raises:
    ValueError: the folder of the run holds a run with other settings.
  """
  try:
    wanted = _settings(_build(run.config.to_dict()))
  except Exception as error:  # one faulty combinator must not keep the other runs from going on
    return " ".join(str(error).split()) or type(error).__name__
  folder = workdir.place(run.config.workdir)
  if not (folder / workdir.RECORD).exists():
    return None
  found = _settings(experiment.load(str(folder)))
  for key, value in wanted.items():
    if found.get(key) != value:
      raise ValueError(
        f"run {run.name!r}: {folder} was run with {key}={found.get(key)!r}, not {value!r}; choose "
        "another config.workdir, or delete that folder"
      )
  return None


def _build(values: Mapping[str, Any]) -> Run:
  """Builds the run of a config on any mesh; the run itself checks its own on its devices."""
  return experiment.build({**values, "mesh": _ANY_MESH})


def _settings(run: Run) -> dict[str, Any]:
  """Returns the settings that decide the result of a run, as JSON values."""
  optim = {f"config.optim.{key}": value for key, value in dataclasses.asdict(run.optim).items()}
  found = workdir.identity(run) | optim
  del found["config.model.dtype"]  # `auto` was resolved where the run had its devices
  return found


def _collect(run: SweepRun, error: str | None = None) -> Result:
  folder = workdir.place(run.config.workdir)
  records = read_metrics(folder / FILE_NAME) if (folder / FILE_NAME).exists() else []
  begun = (folder / workdir.RECORD).exists()
  costs = workdir.read(folder).costs if begun else workdir.Costs()
  return sweep_table.result(run, records, dataclasses.asdict(costs), error)


if __name__ == "__main__":
  cli.run(main, folder=cli.config_workdir)
