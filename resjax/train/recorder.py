"""What a run tells while it goes on: records, progress, throughput."""

import math
from collections.abc import Mapping

import jax
import numpy as np

from resjax import metrics
from resjax.models.flops import training_flops_per_token
from resjax.train.checkpoint import Checkpoints
from resjax.train.config import Run
from resjax.train.evaluate import summary
from resjax.train.logging import MetricLogger
from resjax.train.program import Program
from resjax.train.progress import Progress
from resjax.train.step import Metrics


class Recorder:
  """Logs training and evaluation; use as a context manager. Process 0 alone writes and shows.

  Args:
    run: what is trained.
    program: of the run.
    checkpoints: of the run.
    devices: that it runs on.
    start: step that it goes on from, or None.
  """

  def __init__(
    self,
    run: Run,
    program: Program,
    checkpoints: Checkpoints,
    devices: np.ndarray,
    start: int | None,
  ):
    self._run, self._checkpoints = run, checkpoints
    first = jax.process_index() == 0
    self._logger = MetricLogger(
      run.workdir,
      resume_step=start,
      tensorboard=run.train.tensorboard,
      wandb_project=run.train.wandb_project,
      config=run.resolved,
      enabled=first,
    )
    self._progress = Progress(run.train.steps, start=start or 0, enabled=first)
    self.throughput = metrics.Throughput()
    self._pending: tuple[int, Metrics] | None = None
    peak = metrics.peak_flops(devices.flat[0].device_kind, run.decoder.dtype)
    self._peak = peak and peak * devices.size
    self._flops = training_flops_per_token(run.decoder, program.model.combinator, run.data.seq_len)

  def __enter__(self) -> "Recorder":
    self._logger.__enter__()
    self._progress.__enter__()
    return self

  def __exit__(self, *exc: object) -> None:
    self._progress.__exit__(*exc)
    self._logger.__exit__(*exc)

  def step(self, step: int, values: Metrics) -> None:
    """Takes the metrics of a step that may still run, after it has waited for the step before."""
    before, self._pending = self._pending, (step, values)
    self._record(before)

  def flush(self) -> None:
    """Waits for the last step, and logs it if it is due."""
    before, self._pending = self._pending, None
    self._record(before)

  def evaluation(self, step: int, found: Mapping[str, float]) -> None:
    """Logs an evaluation."""
    self._logger.log(step, {f"validation/{key}": value for key, value in found.items()})
    self._progress.message(
      f"step {step}  validation: {found['bits_per_byte']:.4f} bits per byte, "
      f"loss {found['loss']:.4f}, accuracy {found['accuracy']:.1%}"
    )

  def _record(self, pending: tuple[int, Metrics] | None) -> None:
    if pending is None:
      return
    step, values = pending[0], jax.device_get(pending[1])
    sums, norm = summary(values["sums"]), float(values["grad_norm"])
    self.throughput.add(self._run.train.batch_size * self._run.data.seq_len)
    finite = math.isfinite(sums["loss"]) and math.isfinite(norm)
    last = step == self._run.train.steps
    if finite and step % self._run.train.log_every and not last:
      self._progress.update(step)
      return
    speed, rate = self.throughput.read(), float(values["learning_rate"])
    record = {f"train/{key}": value for key, value in sums.items()}
    record["train/grad_norm"] = norm
    record["train/learning_rate"] = rate
    record["time/tokens_per_second"] = speed
    record["time/mfu"] = metrics.mfu(self._flops, speed, self._peak)
    self._logger.log(step, record)
    shown = {"loss": sums["loss"], "bpb": sums["bits_per_byte"], "lr": rate, "tok/s": speed}
    self._progress.update(step, shown)
    if not finite:
      raise ValueError(
        f"step {step} has loss {sums['loss']} and gradient norm {norm}; the checkpoint of step "
        f"{self._checkpoints.latest} is the last one; lower config.optim.learning_rate"
      )
