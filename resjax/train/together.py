"""Several runs that differ in seeds and learning rate, trained side by side in one program."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from rich.console import Console

from resjax.base import Array, PyTree, terminal
from resjax.base.processes import STACKS, Interrupted, StopRequest, Watchdog, signals
from resjax.base.records import Ledger, Progress
from resjax.data import TextDigest
from resjax.train import common_start, compilation, loop, optim, program
from resjax.train.end_of_run import finish
from resjax.train.gradients import Batch
from resjax.train.program import Program
from resjax.train.recorder import Recorder
from resjax.train.runs import host_memory, lineage, same_program, workdir
from resjax.train.runs.config import Run
from resjax.train.step import Metrics, step_function
from resjax.train.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Together(Program):
  """The programs of several runs: their training steps are one, the other steps each run's own.

  Attributes:
    runs: the number of runs.
  """

  runs: int

  def lower_train_step(self) -> jax.stages.Lowered:
    """See `Program.lower_train_step`; every argument has a leading axis of runs."""
    state, batch = lifted(self.state, self.runs), lifted(self.batch, self.runs)
    peaks = jax.ShapeDtypeStruct((self.runs,), jnp.float32, sharding=self.model.layout.sharding())
    return self.train_step.lower(state, batch, peaks)


def build(run: Run, runs: int) -> Together:
  """Returns the programs of several runs like this one; nothing is compiled.

  The training step is train_step(states, batches, peaks) -> (states, metrics): each
  run has its own state, batch, guard and peak of the learning rate.
  """
  single = program.build(run)
  model, decayed = single.model, single.model.decayed_combinator_paths

  def one(state: PyTree, batch: Batch, peak: Array) -> tuple[PyTree, Metrics]:
    optimizer = optim.make_optimizer(run.optim, run.train.steps, decayed, run.scaling, peak)
    rate = optim.schedule(run.optim, run.train.steps, peak)
    step = step_function(model, optimizer, rate, run.train, run.health)
    return step(state, batch)

  shardings = jax.tree.map(lambda leaf: leaf.sharding, lifted(single.state, runs))
  train_step = jax.jit(
    jax.vmap(one),
    donate_argnums=0,
    out_shardings=(shardings, None),
    compiler_options=dict(single.compiler_options),
  )
  fields = {f.name: getattr(single, f.name) for f in dataclasses.fields(single)}
  return Together(**fields | {"train_step": train_step}, runs=runs)


def lifted(tree: PyTree, runs: int) -> PyTree:
  """Returns abstract arrays with a leading axis of runs, which no device splits."""

  def lift(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    sharding = leaf.sharding
    if isinstance(sharding, NamedSharding):
      sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    return jax.ShapeDtypeStruct((runs, *leaf.shape), leaf.dtype, sharding=sharding)

  return jax.tree.map(lift, tree)


def train(runs: Sequence[Run], console: Console | None = None) -> None:
  """Trains runs to their last step in one program, each from its newest checkpoint.

  Folders, records and checkpoints are the same as of single runs. The account of the time is that
  of the process, and the tokens per second of a run are its share. Runs whose newest checkpoints
  are of other steps, as after a kill, train in a program of their own. A run that its guard ends
  does not end the others.

  Args:
    runs: the runs, which differ in `same_program.FREE` alone.
    console: where to print; default: standard output.

  Raises:
    Interrupted: SIGTERM or Ctrl-C came, and the step in progress of each run was saved.
    ValueError: see `loop.train`, for any of the runs; or the runs differ in other settings.
  """
  if jax.process_count() > 1:
    raise ValueError("runs that train together need one process; train large models one by one")
  runs = [workdir.as_begun(run) for run in runs]
  same_program.check([run.resolved for run in runs])
  console = console or terminal.console()
  folders = [workdir.place(run.workdir) for run in runs]
  watchdog = Watchdog(runs[0].health.watchdog_seconds, folders[0] / STACKS)
  ledger = Ledger(on_phase=watchdog.beat)
  with signals.stop_at_once(), contextlib.ExitStack() as claims:
    with ledger.phase("init"):
      host_memory.check(runs[0])
      for run, folder in zip(runs, folders, strict=True):
        workdir.create(run.workdir)
        claims.enter_context(workdir.lock(folder))
      looked = [loop.look(run) for run in runs]

      def check(fingerprint: str, texts: Mapping[str, TextDigest]) -> None:
        for run, folder in zip(runs, folders, strict=True):
          workdir.check_data(folder, run, fingerprint, texts)

      dataset = common_start.build_data(runs[0].data, console, check)
      runs = [run.with_vocab_size(dataset.vocab_size) for run in runs]
      opened = [
        loop.open_checkpoints(run, dataset, found, console)
        for run, (found, _) in zip(runs, looked, strict=True)
      ]
    with signals.stop_on_request() as stop, contextlib.ExitStack() as stack, watchdog:
      for checkpoints in opened:
        stack.enter_context(checkpoints)
      trainers = []
      with ledger.phase("init"):
        single = program.build(runs[0])
        for run, checkpoints, (found, origin) in zip(runs, opened, looked, strict=True):
          born = lineage.record(found)
          trainers.append(Trainer(run, single, dataset, checkpoints, origin, born, ledger))
          trainers[-1].begin()
          if len(trainers) == 1:
            loop.show_model(trainers[-1], console)
          loop.show_start(trainers[-1], console, f"{run.workdir}: ")
      ended: dict[str, str] = {}
      for start in dict.fromkeys(trainer.start or 0 for trainer in trainers):
        group = [trainer for trainer in trainers if (trainer.start or 0) == start]
        ended |= _Group(group, stop).run_steps()
    for trainer in trainers:
      if trainer.run.workdir not in ended:
        console.rule(trainer.run.workdir)
        finish(trainer, console)
  if ended:
    lines = "; ".join(f"{folder}: {error}" for folder, error in ended.items())
    raise ValueError(f"{len(ended)} of {len(runs)} runs ended: {lines}")


class _Group:
  """Runs that go on from the same step."""

  def __init__(self, trainers: Sequence[Trainer], stop: StopRequest):
    self.trainers, self.stop = trainers, stop
    self.ended: dict[str, str] = {}  # why runs ended before their last step, by workdir
    self.ledger, self.layout = trainers[0].ledger, trainers[0].layout
    run = trainers[0].run
    self.start, self.steps = trainers[0].start or 0, run.train.steps
    self.program = build(run, len(trainers))
    rates = [trainer.run.optim.learning_rate for trainer in trainers]
    self.peaks = self.layout.copy(np.array(rates, np.float32))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, self.program.state)
    self._lane = jax.jit(_lane, out_shardings=shardings)
    lifted_state = lifted(self.program.state, len(trainers))
    stacked = jax.tree.map(lambda leaf: leaf.sharding, lifted_state)
    self._stack = jax.jit(_stack, out_shardings=stacked)

  def run_steps(self) -> dict[str, str]:
    """Runs all remaining steps; returns why runs ended early, by workdir.

    See `Trainer.run_steps`: for each run everything comes in the same order.
    """
    owed = [trainer.owed() for trainer in self.trainers]
    if self.start >= self.steps and not any(owed):
      return {}
    shown = Progress(self.steps, start=self.start)
    with shown, contextlib.ExitStack() as stack:
      self.recorders = [
        stack.enter_context(trainer.recorder(_Part(shown, trainer.run.workdir, number)))
        for number, trainer in enumerate(self.trainers)
      ]
      for recorder in self.recorders:
        recorder.runs = len(self.trainers)
      begun, steps = compilation.begin(self.trainers[0].run, self.program), list[Callable]()
      with shown.doing("compiling"):
        for trainer in self.trainers:
          trainer.begun = begun
        self._each(lambda t, r: t.measure(self.start, owed[self.trainers.index(t)], r, self.stop))
        self._each(lambda t, r: steps.append(t.train_step(r, self.stop)))
      if self.start < self.steps and steps:
        self._loop(steps[0])
      with self.ledger.phase("save"):
        self._each(lambda trainer, _: trainer.checkpoints.wait())
    return self.ended

  def _loop(self, train_step: Callable) -> None:
    state = self._stack([trainer.state for trainer in self.trainers])
    self._free()
    for recorder in self.recorders:
      recorder.throughput.read()
    before: tuple[int, Metrics] | None = None
    for step in range(self.start + 1, self.steps + 1):
      batch = self._batch()
      with self.ledger.phase("dispatch"):
        state, values = train_step(state, batch, self.peaks)
      if step == self.start + 1:
        self._sign(values)
      if before:
        self._record(*before)
      before = step, values
      if self.stop.tick() or self._any_due(step):
        self._record(*before)
        before = None
        self._after(step, state)
      if len(self.ended) == len(self.trainers):
        return

  def _sign(self, values: Metrics) -> None:
    self._each(lambda trainer, _: trainer.sign(values))

  def _batch(self) -> Mapping[str, Array]:
    """Returns the next batches of all runs [runs, B, T]."""
    with self.ledger.phase("input"):
      batches = [next(trainer.batches) for trainer in self.trainers]
      shardings = lifted(self.program.batch, len(batches))
      return {
        name: jax.device_put(np.stack([batch[name] for batch in batches]), leaf.sharding)
        for name, leaf in shardings.items()
      }

  def _record(self, step: int, values: Metrics) -> None:
    """Records the metrics of a step of all runs, for which it waits."""
    with self.ledger.phase("device"):
      values = jax.device_get(values)

    def record(trainer: Trainer, recorder: Recorder) -> None:
      recorder.step(step, _lane(values, self.trainers.index(trainer)))
      recorder.flush()

    self._each(record)

  def _any_due(self, step: int) -> bool:
    due: list[bool] = []
    self._each(lambda trainer, _: due.append(trainer.is_due(step)))
    return any(due)

  def _after(self, step: int, state: PyTree) -> None:
    """Measures and saves what is due for each run after a step."""
    for number, trainer in enumerate(self.trainers):
      trainer.state = self._lane(state, number)

    def after(trainer: Trainer, recorder: Recorder) -> None:
      if self.stop.asked or trainer.is_due(step):
        with recorder.throughput.paused():
          trainer.after(step, recorder, self.stop)

    try:
      self._each(after)
    except Interrupted:
      self._each(after)  # The signal may have come after the turn of the first runs.
    if step < self.steps:
      self._free()

  def _free(self) -> None:
    """Lets go of the states that are copies of parts of the common one."""
    for trainer in self.trainers:
      del trainer.state

  def _each(self, do: Callable[[Trainer, Recorder], None]) -> None:
    """Does something for each run that has not ended; after a signal, all runs are saved.

    Raises:
      Interrupted: a signal came.
    """
    interrupted: dict[int, Interrupted] = {}
    for number, (trainer, recorder) in enumerate(zip(self.trainers, self.recorders, strict=True)):
      if trainer.run.workdir in self.ended:
        continue
      try:
        do(trainer, recorder)
      except Interrupted as error:
        interrupted[number] = error
      except ValueError as error:
        self.ended[trainer.run.workdir] = str(error)
        recorder.message(f"ended: {error}")
    if interrupted:
      raise next(iter(interrupted.values()))


def _lane(tree: PyTree, number: int | Array) -> PyTree:
  return jax.tree.map(lambda leaf: leaf[number], tree)


def _stack(trees: Sequence[PyTree]) -> PyTree:
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


class _Part(Progress):
  """Shows the messages of one of several runs with its name, and the metrics of the first one."""

  def __init__(self, shown: Progress, name: str, number: int):
    super().__init__(0, enabled=False)
    self._shown, self._name, self._leads = shown, name, number == 0

  def update(self, step: int, metrics: Mapping[str, float] | None = None) -> None:
    """See `Progress.update`."""
    if self._leads:
      self._shown.update(step, metrics)

  def message(self, text: str) -> None:
    """See `Progress.message`."""
    self._shown.message(f"{self._name}: {text}")
