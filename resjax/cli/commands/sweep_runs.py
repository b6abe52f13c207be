"""Trains the runs of a sweep, one after the other, each in a process of its own."""

import contextlib
import dataclasses
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags
from rich.console import Console

from resjax.base.processes import SIGINT_CODE, Interrupted, signals
from resjax.base.records import METRICS_FILE, read_metrics
from resjax.cli import outside
from resjax.study import config_tree
from resjax.study.sweeps import Result, SweepRun, results
from resjax.train import experiment
from resjax.train.runs import Run, same_program, workdir

_TOGETHER = flags.DEFINE_integer(
  "together", 1, "Runs that differ in seeds or learning rate alone: so many in one program.", 1
)
_ANY_MESH = {"data": -1, "fsdp": 1, "expert": 1, "tensor": 1, "sequence": 1}


def run_all(runs: Sequence[SweepRun], console: Console) -> dict[str, str]:
  """Trains runs that are not done yet, and returns the errors of those that failed, by name."""
  errors: dict[str, str] = {}
  todo = groups(runs)
  for number, group in enumerate(todo, 1):
    title = f"run {number} of {len(todo)}: {_names(group)}"
    if _are_done(group):
      console.print(f"{title} is done")
      continue
    console.rule(title)
    error = _run(group)
    if error is not None:
      errors |= {run.name: error for run in group if not _are_done([run])}
  return errors


def groups(runs: Sequence[SweepRun]) -> list[list[SweepRun]]:
  """Returns runs that one process trains, --together many at most.

  Raises:
    ValueError: --together is above 1, and no two runs are alike enough. One run of each arm with
      seeds is no mistake: the next value of a grid of tuning, or the last seed that is missing.
  """
  configs = [run.config.to_dict() for run in runs]
  found = same_program.groups(configs, _TOGETHER.value)
  arms = {run.arm for run in runs if run.seed is not None}
  if _TOGETHER.value > 1 and len(found) == len(runs) > max(1, len(arms)):
    try:
      same_program.check(configs[:2])
    except ValueError as error:
      raise ValueError(f"--together={_TOGETHER.value}: {error}") from None
  return [[runs[index] for index in group] for group in found]


def _names(group: Sequence[SweepRun]) -> str:
  return ", ".join(run.name for run in group)


def _are_done(group: Sequence[SweepRun]) -> bool:
  return all(collect(run).status == results.DONE for run in group)


def _run(group: Sequence[SweepRun]) -> str | None:
  """Trains runs in a process of their own, and returns their error in one line, or None."""
  command = [sys.executable, "-m", "resjax", *arguments(group)]
  options: Any = {"stderr": subprocess.PIPE, "text": True, "errors": "replace"}
  # Its own group: every signal comes from here, once, whoever was asked to stop.
  process = subprocess.Popen(command, process_group=0, **options)
  last = ""
  with _signals_to(process) as asked:
    assert process.stderr is not None
    for line in process.stderr:
      print(line, end="", file=sys.stderr, flush=True)
      last = line.strip() or last
    code = process.wait()
  # A run that was at its end when the signal came has ended well, and yet no other one may start.
  if asked or code in (SIGINT_CODE, -signal.SIGINT):
    raise Interrupted(
      f"the sweep stopped in run {_names(group)}; the same command goes on, with --collect it "
      "shows what there is",
      0 if asked == [signal.SIGTERM] else SIGINT_CODE,
    )
  if code < 0:
    return f"ended by signal {-code} ({signal.Signals(-code).name})"
  return (last.removeprefix("error: ") or f"exit code {code}") if code else None


@contextlib.contextmanager
def _signals_to(process: subprocess.Popen[str]) -> Iterator[list[int]]:
  """Hands Ctrl-C and SIGTERM on to a run, which saves, and notes them in the list that it gives."""
  asked: list[int] = []

  def hand_on(number: int, _: object) -> None:
    asked.append(number)
    process.send_signal(number)

  with signals.handlers(dict.fromkeys((signal.SIGINT, signal.SIGTERM), hand_on)):
    yield asked


def arguments(group: Sequence[SweepRun]) -> list[str]:
  """Returns the words behind `resjax` that train runs: their file, and all settings changed."""
  flag, own = flags.FLAGS["config"], []
  settings = {**config_flags.get_override_values(flag), **group[0].overrides}
  settings["workdir"] = group[0].config.workdir
  if len(group) > 1:
    settings = {key: value for key, value in settings.items() if key not in same_program.FREE}
    configs = [config_tree.flat(run.config.to_dict()) for run in group]
    texts = [" ".join(shlex.quote(f"{key}={c[key]}") for key in same_program.FREE) for c in configs]
    own = [f"--run={text}" for text in texts]
  command = "train_together" if own else "train"
  words = [command, f"--config={config_flags.get_config_filename(flag)}"]
  words += outside.words()
  return words + [f"--config.{key}={value}" for key, value in settings.items()] + own


def check(runs: Sequence[SweepRun]) -> dict[str, str]:
  """Returns in one line, by name, why runs cannot be built.

  Of runs with the same overrides but for the seed, the first one is built.

  Raises:
    ValueError: the folder of a run holds a run with other settings.
  """
  errors: dict[str, str] = {}
  known: dict[str, str | None] = {}
  for run in runs:
    alike = repr(sorted((key, value) for key, value in run.overrides.items() if key != "seed"))
    if begun(run) or alike not in known:
      known[alike] = _check(run)
    error = known[alike]
    if error is not None:
      errors[run.name] = error
  return errors


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
  record = workdir.begun(folder)
  if record is None:
    return None
  found = _settings(experiment.load(str(folder)))
  wrong = [(key, found.get(key), "") for key in wanted if found.get(key) != wanted[key]]
  # Those of the optimizer may have been others for some of its steps.
  for part in record.parts:
    for key in wanted:
      was = part.settings.get(key.removeprefix("config."), wanted[key])
      if key.startswith("config.optim.") and json.dumps(was) != json.dumps(wanted[key]):
        wrong.append((key, was, f" from step {part.first_step} on"))
  if wrong:
    key, was, when = wrong[0]
    raise ValueError(
      f"run {run.name!r}: {folder} was run with {key}={was!r}{when}, not {wanted[key]!r}; choose "
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


def begun(run: SweepRun) -> bool:
  """Returns whether a run has trained a step."""
  return workdir.begun(workdir.place(run.config.workdir)) is not None


def collect(run: SweepRun, error: str | None = None, metric: str = results.PRIMARY) -> Result:
  """Returns the result of a run, from its folder.

  Args:
    run: the run.
    error: the reason of its failure in one line; None if it did not fail.
    metric: the name of the metric that the sweep compares.
  """
  folder = workdir.place(run.config.workdir)
  records = read_metrics(folder / METRICS_FILE) if (folder / METRICS_FILE).exists() else []
  record = workdir.begun(folder)
  if record is None:
    return results.result(run, records, {}, error, metric=metric)
  costs = dataclasses.asdict(record.costs)
  environment = results.Environment(record.environment.git, tuple(record.environment.devices))
  return results.result(run, records, costs, error, environment=environment, metric=metric)
