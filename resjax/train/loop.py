"""A training run from its data to its last evaluation."""

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
from rich.console import Console

from resjax.base import Location, processes, terminal
from resjax.base.processes import STACKS, Watchdog, signals
from resjax.base.records import Ledger, metrics_log
from resjax.data import DatasetSummary, storage
from resjax.train import common_start, compilation, program, run_tables
from resjax.train.checkpoint.identity import Identity
from resjax.train.checkpoint.manager import Checkpoints
from resjax.train.checkpoint.reader import newest
from resjax.train.compilation import Compilation
from resjax.train.end_of_run import finish
from resjax.train.result import TrainingResult
from resjax.train.runs import host_memory, init_from, lineage, parents, workdir
from resjax.train.runs.config import Run
from resjax.train.runs.parents import Parent
from resjax.train.trainer import Trainer


def train(
  run: Run, console: Console | None = None, profile_steps: range = range(0)
) -> TrainingResult:
  """Trains a run to its last step, from its newest checkpoint if there is one.

  Process 0 alone prints, and writes all files but checkpoints and profiles. `Trainer.run_steps`
  says in which order records and checkpoints are written.

  Args:
    run: the run to train.
    console: where to print; default: standard output.
    profile_steps: the steps to trace, see `profile.parse_steps`.

  Returns:
    The trained model, and where the files of the run are.

  Raises:
    Interrupted: SIGTERM or Ctrl-C came, and the step in progress was saved.
    ValueError: the memory is too small; the folder cannot be written, is in use, or holds another
      run; the data are missing; the parent's parameters are missing or do not fit; processes are
      not alike; or the loss or the gradient is no longer finite.
  """
  first = jax.process_index() == 0
  console = (console or terminal.console()) if first else terminal.console(quiet=True)
  run, folder = workdir.as_begun(run), workdir.place(run.workdir)
  watchdog = Watchdog(run.health.watchdog_seconds, folder / STACKS if first else None)
  ledger = Ledger(on_phase=watchdog.beat)
  with signals.stop_at_once(), contextlib.ExitStack() as claim:
    with ledger.phase("init"):
      common_start.introduce(run)
      host_memory.check(run)
      if first:
        workdir.create(run.workdir)
        claim.enter_context(workdir.lock(folder))
      # Whatever can be refused is, before the data are built, which may take hours.
      found, origin = look(run)
      begun = _begin(run, folder)
      dataset = common_start.build_data(run.data, console, partial(workdir.check_data, folder, run))
      if dataset.vocab_size != run.decoder.vocab_size:  # the text has fewer tokens than allowed
        run, begun = run.with_vocab_size(dataset.vocab_size), None
      checkpoints = open_checkpoints(run, dataset, found, console)
    with signals.stop_on_request() as stop, checkpoints, watchdog:
      with ledger.phase("init"):
        born = lineage.record(found)
        own = begun.program if begun else program.build(run)
        trainer = Trainer(run, own, dataset, checkpoints, origin, born, ledger)
        trainer.begin()
        show_model(trainer, console)
        show_start(trainer, console)
      trainer.run_steps(stop, profile_steps, begun)
    return finish(trainer, console)


def _begin(run: Run, folder: Location) -> Compilation | None:
  """Begins to compile the steps of a run, unless all are taken; it goes on while data are built.

  The vocabulary may turn out to be smaller. Then this was in vain.
  """
  last = newest(folder / "checkpoints")
  if last is not None and int(last.name) >= run.train.steps:
    return None
  storage.import_libraries()
  return compilation.begin(run, program.build(run))


def look(run: Run) -> tuple[Mapping[str, Any], Parent | None]:
  """Returns what `lineage.find` says of a run, and the parent that it starts from.

  Raises:
    ValueError: the folder holds a run with other settings, or its record is damaged or missing; the
      parent is missing, or does not fit; or a package that the settings need is missing.
  """
  folder = workdir.place(run.workdir)
  if jax.process_index() == 0:
    workdir.check(folder, run)
    metrics_log.check_sinks(
      tensorboard=run.train.tensorboard,
      wandb=run.train.wandb_project,
      goodput=run.train.goodput_job,
    )
  origin = find_origin(run, folder)
  if origin is not None:
    init_from.check(origin, run)
  return processes.first("lineage", lambda: lineage.find(folder, run, origin)), origin


def open_checkpoints(
  run: Run, dataset: DatasetSummary, found: Mapping[str, Any], console: Console
) -> Checkpoints:
  """Returns the checkpoints of a run; `found` is what `lineage.find` says of it.

  Raises:
    ValueError: the folder holds a run with other rows.
  """
  folder = workdir.place(run.workdir)
  if jax.process_index() == 0:
    workdir.check_rows(folder, run, dataset)
  say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
  return Checkpoints(
    folder / "checkpoints",
    run.checkpoint,
    batch_size=run.train.batch_size,
    say=say,
    run=Identity(**found),
  )


def find_origin(run: Run, folder: Location) -> Parent | None:
  """Returns the parent that all processes start from; None where the run has none, or resumes."""

  def find() -> str | None:
    starts = newest(folder / "checkpoints") is None
    return str(parents.find(run.train.init_from, run.train.hf_ignore).source) if starts else None

  found = processes.first("origin", find) if run.train.init_from else None
  return parents.find(found, run.train.hf_ignore) if found else None


def show_model(trainer: Trainer, console: Console) -> None:
  """Prints the model of a run, and the parent whose parameters it starts from."""
  run = trainer.run
  run_tables.show_model(trainer.model, run, trainer.costs, console)
  run_tables.show_compiler_options(run, console)
  if trainer.origin is not None and trainer.inheritance is not None:
    changes = init_from.changes(trainer.origin, trainer.model, run)
    run_tables.show_parent(trainer.origin, trainer.inheritance, changes, console)


def show_start(trainer: Trainer, console: Console, name: str = "") -> None:
  """Prints from which step a run goes on, and what changes there; lines begin with `name`."""
  run = trainer.run
  if trainer.start is not None:
    record = workdir.begun(workdir.place(run.workdir))
    run_tables.show_resumption(run, trainer.start, record.parts if record else [], console, name)
