"""Records and shows the metrics of a run while it goes on."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import jax
import numpy as np

from resjax.base.records import (
  METRICS_FILE,
  GoodputLibrary,
  Ledger,
  MetricLogger,
  Progress,
  StepTime,
  carried,
  read_metrics,
)
from resjax.models import routing_record, training_flops_per_token
from resjax.study.analysis import Alignment, alignment_record, depth_positions
from resjax.train import guard, metrics
from resjax.train.checkpoint.manager import Checkpoints
from resjax.train.evaluate import summary
from resjax.train.program import Program
from resjax.train.runs import workdir
from resjax.train.runs.config import Run
from resjax.train.step import Metrics


class Recorder:
  """Logs training and evaluation; a context manager. Process 0 alone writes and shows anything.

  Args:
    run: the run that is trained.
    program: its programs.
    checkpoints: its checkpoints.
    devices: the devices that it runs on.
    start: the step that it goes on from; None: it starts anew.
    ledger: its ledger, which is given the account of earlier processes of the run.
    progress: shows metrics and messages.

  Attributes:
    runs: how many runs the program trains; their memory is that of all, and they share its time.
    throughput: counts the tokens per second; whatever is no training step pauses it.
    skipped_in_a_row: the number of steps skipped since the last one that was taken, as far as
      metrics have come.
    step_bytes: the memory of one device that the compiled training step takes; None: not known.
  """

  def __init__(
    self,
    run: Run,
    program: Program,
    checkpoints: Checkpoints,
    devices: np.ndarray,
    start: int | None,
    ledger: Ledger,
    progress: Progress,
  ):
    self._run, self._checkpoints, self._ledger = run, checkpoints, ledger
    self._start, self.skipped_in_a_row = start or 0, 0
    self.runs = 1
    self.step_bytes: int | None = None
    first = jax.process_index() == 0
    path = workdir.place(run.workdir) / METRICS_FILE
    if first and path.exists():  # the logger then drops the records after the checkpoint
      ledger.resume(carried(read_metrics(path), start))
    self._logger = MetricLogger(
      run.workdir,
      resume_step=start,
      tensorboard=run.train.tensorboard,
      wandb_project=run.train.wandb_project,
      config=run.resolved,
      enabled=first,
    )
    self._progress, self._open = progress, ExitStack()
    self.throughput, self._step_time = metrics.Throughput(), StepTime(ledger)
    self._pending: tuple[int, Metrics] | None = None
    peak = metrics.peak_flops(devices.flat[0].device_kind, run.decoder.dtype)
    self._peak = peak and peak * devices.size
    self._flops = training_flops_per_token(run.decoder, program.model.combinator, run.data.seq_len)

  def __enter__(self) -> "Recorder":
    with ExitStack() as opened:
      opened.enter_context(self._logger)
      if (job := self._run.train.goodput_job) and jax.process_index() == 0:
        so_far = sum(self._ledger.phases().values())
        library = opened.enter_context(GoodputLibrary(job, self._start, so_far))
        opened.enter_context(self._ledger.follow(library.phase))
      opened.enter_context(self._progress)
      self._open = opened.pop_all()
    return self

  def __exit__(self, *exc: Any) -> None:
    self._open.__exit__(*exc)

  def step(self, step: int, values: Metrics) -> None:
    """Takes the metrics of a step that may still run; waits for and records the previous step's."""
    before, self._pending = self._pending, (step, values)
    if before:
      self._record(*before)

  def flush(self) -> None:
    """Waits for the metrics of the last step, and logs them if they are due."""
    before, self._pending = self._pending, None
    if before:
      self._record(*before)

  def evaluation(self, step: int, found: Mapping[str, float]) -> None:
    """Logs the validation metrics of a step, and shows a line of them."""
    record = {f"validation/{key}": value for key, value in found.items()}
    self._logger.log(step, record | self._ledger.record())
    macro = found.get("macro_bits_per_byte")
    mean = "" if macro is None else f"macro average {macro:.4f}, "
    self._progress.message(
      f"step {step}  validation: {found['bits_per_byte']:.4f} bits per byte, {mean}"
      f"loss {found['loss']:.4f}, accuracy {found['accuracy']:.1%}"
    )

  def alignment(self, step: int, found: Alignment) -> None:
    """Logs the alignment, and where the input token is lost and the next one emerges."""
    self._logger.log(step, alignment_record.to_record(found) | self._ledger.record())
    self._progress.message(f"step {step}  {depth_positions.answer(found)}")

  def account(self, step: int) -> None:
    """Logs where the time went, before a checkpoint, so that a restart can tell repeated steps.

    Raises:
      ValueError: another process writes the same records.
    """
    record = self._ledger.record()
    with self._ledger.phase("log"):
      self._logger.log(step, record)
      self._logger.flush()

  def message(self, text: str) -> None:
    """Shows a line of text."""
    self._progress.message(text)

  def _record(self, step: int, values: Metrics) -> None:
    with self._ledger.phase("device"):
      values = jax.device_get(values)
    self.throughput.add(self._run.train.batch_size * self._run.data.seq_len)
    self._step_time.add()
    with self._ledger.phase("log"):
      self._log(step, values)

  def _log(self, step: int, values: Metrics) -> None:
    """Logs a step that is due or was skipped, and ends the run if the guard says so."""
    sums, norm, skipped = summary(values["sums"]), float(values["grad_norm"]), values["skipped"]
    due = step % self._run.train.log_every == 0 or step == self._run.train.steps
    if not (due or skipped):
      self._progress.update(step)
    else:
      speed, rate = self.throughput.read(), float(values["learning_rate"])
      record: dict[str, float | None] = {f"train/{key}": value for key, value in sums.items()}
      record["train/grad_norm"] = norm
      record["train/learning_rate"] = rate
      record["train/skipped"] = int(values["skipped_total"])
      record["time/tokens_per_second"] = speed
      record["time/runs"] = self.runs
      record["time/mfu"] = metrics.mfu(self._flops, speed, self._peak)
      record["memory/step_bytes"] = self.step_bytes
      if (routing := values["routing"]) is not None:
        record |= routing_record(self._run.decoder, routing)
      self._logger.log(step, record | self._step_time.read() | self._ledger.record())
      shown = {"loss": sums["loss"], "bpb": sums["bits_per_byte"], "lr": rate, "tok/s": speed}
      self._progress.update(step, shown)
    update, in_a_row = values["update"], int(values["skipped_in_a_row"])
    self.skipped_in_a_row = in_a_row
    if skipped:
      self.message(f"step {step} is skipped: {guard.describe(sums['loss'], norm, update)}")
    problem = guard.problem(
      self._run.health,
      loss=sums["loss"],
      grad_norm=norm,
      skipped=int(values["skipped_total"]),
      in_a_row=in_a_row,
      update=update,
    )
    if problem:
      # Whoever reads the records later learns why they end. A run that goes on drops this one.
      self._logger.log(step, {"train/ended_by_guard": True})
      raise ValueError(f"step {step} has {problem}; {self._way_back(step)}")

  def _way_back(self, step: int) -> str:
    """Returns, for a step that ends the run, the checkpoint from which the same command resumes."""
    first, last = f"the checkpoint of step {self._start}", self._checkpoints.last_words()
    if not self._start or self._checkpoints.latest != self._start:
      return last
    if self.skipped_in_a_row < step - self._start:
      return last
    return (
      f"{last}; no step after it was taken, so if that does not help, move {first} out of "
      f"{self._checkpoints.folder}, and the one before it is used"
    )
