"""A training run from its data to its last evaluation."""

import math
from pathlib import Path

import jax
from rich.console import Console

from resjax import metrics
from resjax.analysis.plots import training_curves
from resjax.data import pipeline, tokenizer
from resjax.data.report import build_and_show
from resjax.data.summary import DatasetSummary
from resjax.models.flops import training_flops_per_token
from resjax.sharding import make_layout
from resjax.train import init_from, program, report, workdir
from resjax.train.checkpoint import Checkpoints, newest
from resjax.train.config import Run
from resjax.train.evaluate import evaluate, summary
from resjax.train.interrupt import Interrupted, StopRequest, stop_on_ctrl_c
from resjax.train.logging import FILE_NAME, MetricLogger, read_metrics
from resjax.train.progress import Progress
from resjax.train.sample import sample_text
from resjax.train.state import TrainState, first_state, init_state
from resjax.train.step import Metrics


def train(run: Run, console: Console | None = None) -> None:
  """Trains a run to its last step, from its newest checkpoint if there is one.

  After every step n come the metrics of n, then the evaluation of n, then the checkpoint of n, so
  that a resumed run neither misses nor repeats a record.

  Raises:
    Interrupted: Ctrl-C, after the step in progress was saved.
    ValueError: the folder cannot be written, is in use, or holds another run; the data are not
      there; the parent's parameters are not there or do not fit; there are several processes; loss
      or gradient are no longer finite.
  """
  if jax.process_count() > 1:
    raise ValueError(f"{jax.process_count()} processes; the trainer runs in one process so far")
  console = console or Console()
  folder = workdir.create(run.workdir)
  with workdir.lock(folder):
    # Before the data are built, which may take long; a run that resumes needs no parent.
    starts = newest(folder / "checkpoints") is None
    origin = init_from.find(run.train.init_from) if starts and run.train.init_from else None
    dataset = build_and_show(run.data, console)
    run = run.with_vocab_size(dataset.vocab_size)
    workdir.check(folder, run, dataset)
    with Checkpoints(folder / "checkpoints", keep_last=run.train.keep_last) as checkpoints:
      trainer = Trainer(run, dataset, folder, checkpoints, origin)
      costs = report.model_costs(trainer.model, run)
      workdir.write(folder, run, dataset, costs)
      report.show_model(trainer.model, run, costs, console)
      if origin is not None:
        changes = init_from.changes(origin, trainer.model, run)
        report.show_parent(origin, trainer.inheritance, changes, console)
      if trainer.start is not None:
        at_end = "; that is the last one, nothing to train" * (trainer.start >= run.train.steps)
        console.print(f"resuming after step {trainer.start} of {run.train.steps}{at_end}")
      trainer.run_steps()
    trainer.finish(console)


class Trainer:
  """One run in progress: model, state, data, and where its results go.

  Args:
    run: what to train, with the vocabulary of its data.
    dataset: the built data.
    folder: the workdir.
    checkpoints: of this workdir.
    origin: the checkpoint of another run that this one starts from, or None.

  Attributes:
    start: step of the checkpoint that the run goes on from, or None.
    inheritance: what came from `origin`, or None.
    state: of the training.
  """

  def __init__(
    self,
    run: Run,
    dataset: DatasetSummary,
    folder: Path,
    checkpoints: Checkpoints,
    origin: init_from.Parent | None = None,
  ):
    self.run, self.dataset, self.folder, self.checkpoints = run, dataset, folder, checkpoints
    self.origin, self.inheritance = origin, None
    self.layout = make_layout(run.mesh, run.sharding)
    self.program = program.build(run, self.layout)
    self.model = self.program.model
    self.tokenizer = tokenizer.load(dataset.tokenizer)
    self.token_bytes = jax.device_put(self.tokenizer.token_bytes(), self.layout.sharding(None))
    self.batches = pipeline.train_batches(
      run.data, dataset, batch_size=run.train.batch_size, seed=run.seed
    )
    self.start = checkpoints.latest
    self.state = self._first_state()
    self.throughput = metrics.Throughput()

  def _first_state(self) -> TrainState:
    optimizer = self.program.optimizer
    if self.start is not None:
      return self.checkpoints.restore(self.program.state, self.batches)
    if self.origin is None:
      return init_state(self.model, optimizer, self.run.seed)
    params, self.inheritance = init_from.start(
      self.origin, self.model, self.run.seed, self.dataset.tokenizer
    )
    return first_state(self.model, optimizer, params)

  def run_steps(self) -> None:
    """Runs all remaining steps."""
    config = self.run.train
    self.logger = MetricLogger(
      self.folder,
      resume_step=self.start,
      tensorboard=config.tensorboard,
      wandb_project=config.wandb_project,
      config=self.run.resolved,
    )
    self.progress = Progress(config.steps, start=self.start or 0)
    with self.logger, self.progress, stop_on_ctrl_c() as stop:
      if self.start is None:
        self._evaluate(0)
      self.throughput.read()
      pending = None
      for step in range((self.start or 0) + 1, config.steps + 1):
        batch = self.layout.put(next(self.batches))
        self.state, device_metrics = self.program.train_step(self.state, batch, self.token_bytes)
        # The metrics of a step are fetched while the next one runs.
        self._record(pending)
        pending = step, device_metrics
        if stop.asked or self._due(step, config.eval_every, config.checkpoint_every):
          self._record(pending)
          pending = None
          with self.throughput.paused():
            self._after(step, stop)

  def _due(self, step: int, *intervals: int) -> bool:
    last = step == self.run.train.steps
    return last or any(every > 0 and step % every == 0 for every in intervals)

  def _after(self, step: int, stop: StopRequest) -> None:
    """Evaluates and saves what is due after a step, all of whose metrics are recorded."""
    if self._due(step, self.run.train.eval_every):
      self._evaluate(step)
    if stop.asked or self._due(step, self.run.train.checkpoint_every):
      self.checkpoints.save(step, self.state, self.batches)
    if stop.asked and step < self.run.train.steps:
      raise Interrupted(f"stopped after step {step}, which is saved; the same command goes on")

  def _record(self, pending: tuple[int, Metrics] | None) -> None:
    """Waits for a step; logs its metrics if they are due."""
    if pending is None:
      return
    step, values = pending[0], jax.device_get(pending[1])
    sums, norm = summary(values["sums"]), float(values["grad_norm"])
    self.throughput.add(self.run.train.batch_size * self.run.data.seq_len)
    finite = math.isfinite(sums["loss"]) and math.isfinite(norm)
    if finite and not self._due(step, self.run.train.log_every):
      self.progress.update(step)
      return
    speed, rate = self.throughput.read(), float(values["learning_rate"])
    record = {f"train/{key}": value for key, value in sums.items()}
    record["train/grad_norm"] = norm
    record["train/learning_rate"] = rate
    record["time/tokens_per_second"] = speed
    record["time/mfu"] = self._mfu(speed)
    self.logger.log(step, record)
    shown = {"loss": sums["loss"], "bpb": sums["bits_per_byte"], "lr": rate, "tok/s": speed}
    self.progress.update(step, shown)
    if not finite:
      raise ValueError(
        f"step {step} has loss {sums['loss']} and gradient norm {norm}; the checkpoint of step "
        f"{self.checkpoints.latest} is the last one; lower config.optim.learning_rate"
      )

  def _mfu(self, tokens_per_second: float) -> float | None:
    run, devices = self.run, self.layout.mesh.devices.flatten()
    flops = training_flops_per_token(run.decoder, self.model.combinator, run.data.seq_len)
    peak = metrics.peak_flops(devices[0].device_kind, run.decoder.dtype)
    return metrics.mfu(flops, tokens_per_second, peak and peak * len(devices))

  def _evaluate(self, step: int) -> None:
    found = evaluate(
      self.program.eval_step,
      self.state.params,
      self.dataset,
      self.layout,
      self.token_bytes,
      split="validation",
      batch_size=self.run.train.batch_size // self.run.train.microbatches,
      max_rows=self.run.train.eval_rows,
    )
    self.logger.log(step, {f"validation/{key}": value for key, value in found.items()})
    self.progress.message(
      f"step {step}  validation: {found['bits_per_byte']:.4f} bits per byte, "
      f"loss {found['loss']:.4f}, accuracy {found['accuracy']:.1%}"
    )

  def finish(self, console: Console) -> None:
    """Prints how far the run came, a sample, and where everything lies; draws the curves."""
    config = self.run.train
    records = read_metrics(self.folder / FILE_NAME)
    plot = self.folder / "plots" / "training.png"
    training_curves(records, f"{self.folder}  ({self.run.decoder.residual.name})", plot)
    report.show_result(records, console)
    num_tokens = min(config.sample_tokens, self.run.data.seq_len - 1)  # a row begins with one token
    if num_tokens:
      options = {"num_tokens": num_tokens, "temperature": 0.8, "seed": self.run.seed}
      text = sample_text(self.model, self.state.params, self.tokenizer, [""], **options)[0]
      console.print("sample (temperature 0.8):")
      console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"metrics     {self.folder / FILE_NAME}", soft_wrap=True)
    console.print(f"plots       {plot}", soft_wrap=True)
    newest = self.checkpoints.folder / str(self.checkpoints.latest)
    console.print(f"checkpoint  {newest}", soft_wrap=True)
