"""A run in progress: its steps, and evaluation and checkpoints after them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import jax
from jax.stages import Compiled

from resjax.base import processes
from resjax.base.processes import Interrupted, StopRequest
from resjax.base.records import METRICS_FILE, Ledger, Progress, read_metrics
from resjax.data import DatasetSummary, evaluation_batches, tokenizer, train_batches
from resjax.study.analysis import Meter
from resjax.train import compilation, run_tables
from resjax.train.checkpoint.manager import Checkpoints
from resjax.train.compilation import ALIGNMENT, TRAINING, VALIDATION, Compilation
from resjax.train.evaluate import SPLIT, evaluate
from resjax.train.profile import Profiler
from resjax.train.program import ALIGNMENT_PROBES, Program
from resjax.train.recorder import Recorder
from resjax.train.runs import history, init_from, workdir
from resjax.train.runs.config import Run
from resjax.train.runs.init_from import Inheritance
from resjax.train.runs.parents import Parent
from resjax.train.state import TrainState, first_state, init_state
from resjax.train.step import Metrics


class Trainer:
  """Trains a run: it holds the model, the state and the data, and knows where results go.

  Args:
    run: the run, with the vocabulary of its data.
    program: its programs.
    dataset: the built data.
    checkpoints: the checkpoints of its workdir.
    origin: the parent that it starts from; None: it has none, or goes on from a checkpoint.
    born: who the run is, see `resjax.train.runs.lineage.record`.
    ledger: counts the time of the run.

  Attributes:
    costs: the costs of the model, see `run_tables.model_costs`.
    begun: the compilation of the steps; it is set before any of them runs.
    start: the step of the checkpoint that the run goes on from; None: there is none.
    inheritance: says which parameters came from `origin`; None: there is no origin.
    state: the train state.
    recorded: whether this process has added to the records of the run.
  """

  def __init__(
    self,
    run: Run,
    program: Program,
    dataset: DatasetSummary,
    checkpoints: Checkpoints,
    origin: Parent | None,
    born: Mapping[str, Any],
    ledger: Ledger,
  ):
    self.run, self.dataset, self.checkpoints, self.ledger = run, dataset, checkpoints, ledger
    ledger.beside(lambda: checkpoints.opening_seconds)
    self.origin, self._born = origin, born
    self.inheritance: Inheritance | None = None
    self.layout = run.layout
    self.program = program
    self.model = program.model
    self.costs = run_tables.model_costs(self.model, run)
    self.tokenizer = tokenizer.of_data(dataset.tokenizer)
    size = run.train.batch_size
    self.batches = train_batches(
      run.data, dataset, batch_size=size, seed=run.seeds.order, rows=self.layout.rows(size).tolist()
    )
    self._meter: Meter | None = None
    self.recorded = False
    self._put_off = False  # whether a save waits for a step that is taken
    self.start = _agreed(checkpoints)
    self.state = self._first_state()

  def _first_state(self) -> TrainState:
    optimizer = self.program.optimizer
    if self.start is not None:
      with self.ledger.phase("restore"):
        self.start, state = self.checkpoints.restore(self.program.state, self.batches)
      return state
    if self.origin is None:
      return init_state(self.model, optimizer, self.run.seeds.init)
    params, self.inheritance = init_from.start(
      self.origin, self.model, self.run.seeds.init, self.dataset.tokenizer
    )
    return first_state(self.model, optimizer, params)

  def run_steps(
    self, stop: StopRequest, profile_steps: range, begun: Compilation | None = None
  ) -> None:
    """Runs all remaining steps, after an evaluation that an earlier process was stopped before.

    After every step n come the metrics of n, then its evaluation and alignment, then its
    checkpoint, so that a resumed run neither misses nor repeats a record. A signal leaves out the
    evaluation, which the next process makes up for.

    Args:
      stop: tells whether a signal came.
      profile_steps: the steps to trace, see `profile.parse_steps`.
      begun: a compilation of `program` that has begun; None: it begins now.

    Raises:
      Interrupted: a signal came, and the state was saved.
      ValueError: the run resumes after the first step to trace; or the guard ends the run, or the
        last step was skipped, so that its state is not saved.
    """
    done, steps = self.start or 0, self.run.train.steps
    owed = processes.first("owed", self.owed)
    if done >= steps and not owed:
      return
    progress = Progress(steps, start=done, enabled=jax.process_index() == 0)
    recorder = self.recorder(progress)
    profiler = Profiler(
      profile_steps,
      workdir.place(self.run.workdir) / "profile",
      start=done,
      log=recorder.message,
      process=jax.process_index(),
    )
    with recorder, profiler:
      self.begun = begun or compilation.begin(self.run, self.program)
      with progress.doing("compiling"):
        self.measure(done, owed, recorder, stop)
        train_step = self.train_step(recorder, stop)
      recorder.throughput.read()
      for step in range(done + 1, steps + 1):
        with profiler.step(step):
          values = self._step(train_step)
        if step == done + 1:
          self.sign(values)
        recorder.step(step, values)
        profiler.end(step, values)
        if stop.tick() or self.is_due(step):
          recorder.flush()
          with recorder.throughput.paused():
            self.after(step, recorder, stop)
      with self.ledger.phase("save"):
        self.checkpoints.wait()

  def recorder(self, progress: Progress) -> Recorder:
    """Returns what records the run, and shows its metrics there."""
    self.recorded = True
    devices = self.layout.mesh.devices
    return Recorder(
      self.run, self.program, self.checkpoints, devices, self.start, self.ledger, progress
    )

  def train_step(self, recorder: Recorder, stop: StopRequest) -> Callable:
    """Returns the compiled training step, for which it waits.

    Raises:
      Interrupted: a signal came.
    """
    compiled = self._compiled(TRAINING, self.start or 0, recorder, stop)
    sizes = compiled.memory_analysis()  # None: the compiler of this platform does not tell
    recorder.step_bytes = sizes and sizes.peak_memory_in_bytes
    return compiled

  def _compiled(self, name: str, step: int, recorder: Recorder, stop: StopRequest) -> Compiled:
    """Returns one of the compiled steps; `step` is the one after which it is needed."""
    with self.ledger.phase("compile"):
      compiled = self.begun.wait(name, stop)
    if compiled is None or stop.tick():
      self._stop(step, recorder, stop)
    return compiled

  def _step(self, train_step: Callable) -> Metrics:
    """Starts a training step and returns its metrics, which the devices may still compute."""
    with self.ledger.phase("input"):
      batch = self.layout.put(next(self.batches), self.run.train.batch_size)
    with self.ledger.phase("dispatch"):
      self.state, values = train_step(self.state, batch)
    return values

  def begin(self) -> None:
    """Writes the record of a run that has trained no step yet, in process 0."""
    if jax.process_index() == 0:
      folder = workdir.place(self.run.workdir)
      if workdir.begun(folder) is None:
        workdir.write(folder, self.run, self.dataset, self.costs, self._born, after=None)

  def sign(self, values: Metrics) -> None:
    """Notes in the record of the run that its settings hold from the first step here on.

    Args:
      values: the metrics of that step; one that does not end claims nothing.
    """
    with self.ledger.phase("device"):
      jax.block_until_ready(values)
    if jax.process_index() == 0:
      folder, after = workdir.place(self.run.workdir), self.start or 0
      workdir.write(folder, self.run, self.dataset, self.costs, self._born, after=after)

  def _due(self, step: int) -> list[str]:
    """Returns which measurements are due after a step: `validation`, `alignment`, both or neither.

    The names of the metrics begin with these words and a slash.
    """
    train, ends = self.run.train, step in (0, self.run.train.steps)
    due = {
      "validation": ends or _divides(train.eval_every, step),
      "alignment": train.alignment_every > 0 and (ends or _divides(train.alignment_every, step)),
    }
    return [name for name, is_due in due.items() if is_due]

  def is_due(self, step: int) -> bool:
    """Returns whether there is anything to measure or to save after a step."""
    return bool(self._due(step)) or self._save_due(step)

  def _save_due(self, step: int) -> bool:
    return self.checkpoints.due(step) or step == self.run.train.steps

  def after(self, step: int, recorder: Recorder, stop: StopRequest) -> None:
    """Measures and saves what is due after a step, whose own metrics are recorded already.

    Raises:
      Interrupted: a signal came, and the state was saved.
      ValueError: the last step was skipped, so that its state is not saved.
    """
    if stop.asked:
      self._stop(step, recorder, stop)
    self.measure(step, self._due(step), recorder, stop)
    if self._save_due(step) and not self._save(step, recorder) and step == self.run.train.steps:
      raise ValueError(
        f"step {step}, the last one, is skipped: {self._not_saved(recorder)}; lower "
        f"config.optim.learning_rate={self.run.optim.learning_rate:g}, or set another "
        f"config.train.steps={step}; {self.checkpoints.last_words()}"
      )

  def measure(self, step: int, names: Sequence[str], recorder: Recorder, stop: StopRequest) -> None:
    """Measures what `names` say, `validation` or `alignment`, after a step."""
    for name in names:
      {"validation": self._evaluate, "alignment": self._align}[name](step, recorder, stop)

  def _save(self, step: int, recorder: Recorder) -> bool:
    """Saves the state after a step, unless the step was skipped; returns whether it is saved.

    While steps are skipped something is wrong, perhaps with the state itself. It must not take the
    place of a good checkpoint, so the save waits for the next step that is taken.
    """
    if recorder.skipped_in_a_row:
      if not self._put_off and step < self.run.train.steps:
        recorder.message(f"step {step}: {self._not_saved(recorder)}; the next step taken will be")
      self._put_off = True
      self.checkpoints.schedule.postpone()
      return False
    self._put_off = False
    recorder.account(step)
    with self.ledger.phase("save"):
      self.checkpoints.save(step, self.state, self.batches)
    return True

  def _not_saved(self, recorder: Recorder) -> str:
    return f"nothing is saved while steps are skipped, {recorder.skipped_in_a_row} in a row so far"

  def _evaluate(self, step: int, recorder: Recorder, stop: StopRequest) -> None:
    config = self.run.train
    found = evaluate(
      self._compiled(VALIDATION, step, recorder, stop),
      self.state.params,
      self.dataset,
      self.layout,
      partial(self._batch, step, recorder, stop),
      batch_size=config.batch_size // config.microbatches,
      max_rows=config.eval_rows,
    )
    recorder.evaluation(step, found)

  def _align(self, step: int, recorder: Recorder, stop: StopRequest) -> None:
    if self._meter is None:
      self._meter = self._make_meter(self._compiled(ALIGNMENT, step, recorder, stop))
    around = partial(self._batch, step, recorder, stop)
    found = self._meter.measure(self.state.params, self.run.workdir, around_batch=around)
    recorder.alignment(step, found)

  def _make_meter(self, probe_step: Compiled) -> Meter:
    """Returns a meter of the alignment, which always reads the same few rows of the split."""
    size = self.program.alignment_batch["inputs"].shape[0]
    rows, max_rows = self.layout.rows(size).tolist(), self.run.train.alignment_rows
    return Meter(
      self.model.bind(self.program.state.params),
      evaluation_batches(self.dataset, SPLIT, batch_size=size, max_rows=max_rows, rows=rows),
      batch_size=size,
      corpus=SPLIT,
      config=ALIGNMENT_PROBES,
      step=probe_step,
    )

  @contextlib.contextmanager
  def _batch(self, step: int, recorder: Recorder, stop: StopRequest) -> Iterator[None]:
    """Is around each batch of an evaluation; counts its time, and ends the run after a signal."""
    with self.ledger.phase("eval"):
      yield
    if stop.tick():
      self._stop(step, recorder, stop)

  def owed(self) -> list[str]:
    """Returns what should have been measured after the step to go on from, but is not recorded.

    A run that is done does not owe an alignment that its last part did not ask for.
    """
    step, folder = self.start or 0, workdir.place(self.run.workdir)
    path, due = folder / METRICS_FILE, self._due(step)
    if step >= self.run.train.steps and (record := workdir.begun(folder)):
      part = history.at(record.parts, step)
      if part and not part.settings.get("train.alignment_every", True):
        due = [name for name in due if name != "alignment"]
    records = read_metrics(path) if self.start is not None and path.exists() else []
    names = [name for record in records if record["step"] == step for name in record]
    return [name for name in due if not any(n.startswith(f"{name}/") for n in names)]

  def _stop(self, step: int, recorder: Recorder, stop: StopRequest) -> NoReturn:
    """Saves the state after a step unless the step was skipped, and raises Interrupted."""
    saved = self._save(step, recorder)
    self.checkpoints.wait()
    message = f"stopped after step {step}, which is saved; the same command goes on"
    if not saved:
      message = (
        f"stopped after step {step}: {self._not_saved(recorder)}; {self.checkpoints.last_words()}"
      )
    raise Interrupted(message, stop.code, agreed=True)


def _divides(every: int, step: int) -> bool:
  return every > 0 and step % every == 0


def _agreed(checkpoints: Checkpoints) -> int | None:
  """Returns the step of the checkpoint that all processes go on from; None if there is none.

  Raises:
    ValueError: this process finds another newest checkpoint than process 0.
  """
  newest = processes.first("start", lambda: checkpoints.latest)
  if checkpoints.latest != newest:
    raise ValueError(
      f"process {jax.process_index()} finds checkpoint {checkpoints.latest} in "
      f"{checkpoints.folder}, process 0 finds {newest}; set config.workdir to a folder that all "
      "hosts share"
    )
  return newest
