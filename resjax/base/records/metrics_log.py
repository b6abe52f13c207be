"""The metrics of a run in `metrics.jsonl`, and also in TensorBoard and Weights & Biases."""

import json
import math
import os
import tempfile
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from resjax.base import extras, locations, typed_json
from resjax.base.locations import Location
from resjax.base.records import goodput_library, line_file
from resjax.base.records.line_file import LocalLines, RemoteLines

METRICS_FILE = "metrics.jsonl"

_MOST_BYTES = 1 << 29  # of a file that is read; a million records of a training step
_MOST_OF_LINE = 1 << 20  # bytes
# The beginnings of names that others compute with.
_OF_NUMBERS = ("train/", "validation/", "time/", "memory/", "goodput/")

Scalar = bool | int | float | str | None


class Sink(Protocol):
  """Another place that the records of a run are written to."""

  def log(self, step: int, metrics: Mapping[str, Scalar]) -> None:
    """Writes one record; steps never decrease."""

  def close(self) -> None:
    """Writes whatever has been held back."""


class MetricLogger:
  """Writes records to `metrics.jsonl` in the workdir, the source of truth, and to other sinks.

  A record is one line, {"step": n, name: value, ...}. JSON has no NaN or infinity, which become
  null. A step may have several records, of training and of evaluation. A resumed run neither misses
  nor repeats a record if all records of step n are logged, and `flush` is called, before the
  checkpoint of step n is saved.

  Args:
    workdir: the folder of the run, which is made where missing.
    resume_step: the step of the restored checkpoint: later records are dropped. None: there is no
      checkpoint, and the file starts empty.
    tensorboard: whether event files are written to `tensorboard` in the workdir.
    wandb_project: the project of Weights & Biases that is logged to; empty: none.
    config: the settings of the run, for Weights & Biases.
    enabled: False writes nothing, as in all processes but the first.

  Raises:
    ValueError: a chosen sink is not installed, or an old record cannot be read.
  """

  def __init__(
    self,
    workdir: str | os.PathLike,
    *,
    resume_step: int | None,
    tensorboard: bool,
    wandb_project: str,
    config: Mapping[str, Any],
    enabled: bool = True,
  ):
    self._lines: LocalLines | RemoteLines | None = None
    self._sinks: list[Sink] = []
    self._last_step = 0 if resume_step is None else resume_step
    if not enabled:
      return
    folder = locations.path(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    # The optional packages come first: where one is missing, no file has been touched.
    if tensorboard:
      self._sinks.append(TensorBoardSink(folder, resume_step))
    if wandb_project:
      self._sinks.append(WandbSink(folder, resume_step, wandb_project, config))
    self._lines = _opened(folder / METRICS_FILE, resume_step)

  def __enter__(self) -> "MetricLogger":
    return self

  def __exit__(self, *exc: object) -> None:
    self.close()

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Writes what was measured at a step: a line of metrics.jsonl, and to the other sinks.

    Args:
      step: the number of finished steps, at least that of the last record.
      metrics: numbers, strings or arrays of one element, by name, such as train/loss.

    Raises:
      ValueError: the step is smaller than the last one, a value is no scalar, or a metric is named
        `step`.
    """
    if self._lines is None:
      return
    if step < self._last_step:
      raise ValueError(f"step {step} comes after step {self._last_step} in {METRICS_FILE}")
    if "step" in metrics:
      raise ValueError("a metric may not be named 'step'; the record has that key")
    plain = {name: _scalar(name, value) for name, value in metrics.items()}
    self._last_step = step
    self._lines.add(json.dumps({"step": step, **plain}, allow_nan=False))
    for sink in self._sinks:
      sink.log(step, plain)

  def flush(self) -> None:
    """Returns when all records are in `metrics.jsonl`.

    Raises:
      ValueError: another process writes the same file.
    """
    if self._lines is not None:
      self._lines.flush()

  def close(self) -> None:
    """Closes `metrics.jsonl` and all sinks."""
    outputs = [] if self._lines is None else [self._lines, *self._sinks]
    self._lines, self._sinks = None, []
    for output in outputs:
      output.close()


class TensorBoardSink:
  """Event files of TensorBoard, which have the numbers of the records; tensorboardX writes them."""

  def __init__(self, folder: Location, resume_step: int | None):
    module = extras.chosen("tensorboardX", "tensorboard", "config.train.tensorboard")
    # From this step on TensorBoard hides what an earlier process wrote.
    purge = 0 if resume_step is None else resume_step + 1
    # File names have the time in seconds; the suffix tells processes of the same second apart.
    self._writer = module.SummaryWriter(
      logdir=str(folder / "tensorboard"), purge_step=purge, filename_suffix=f".{purge}"
    )

  def log(self, step: int, metrics: Mapping[str, Scalar]) -> None:
    """Adds the numbers of one record."""
    for name, value in metrics.items():
      if isinstance(value, int | float):
        self._writer.add_scalar(name, value, step)

  def close(self) -> None:
    """Writes the last numbers and closes the event file."""
    self._writer.close()


class WandbSink:
  """A run of Weights & Biases, which a resumed run continues.

  The file `wandb_id` in the workdir keeps its number. It ignores steps that it already has.
  """

  def __init__(
    self, folder: Location, resume_step: int | None, project: str, config: Mapping[str, Any]
  ):
    module = extras.chosen("wandb", "wandb", "config.train.wandb_project")
    path = folder / "wandb_id"
    if resume_step is None or not path.exists():
      path.write_text(uuid.uuid4().hex[:8], encoding="utf-8")
    local = folder if locations.is_local(folder) else tempfile.mkdtemp(prefix="wandb-")
    self._run = module.init(
      project=project,
      id=path.read_text(encoding="utf-8").strip(),
      resume="allow",
      dir=str(local),
      config=dict(config),
      allow_val_change=True,  # a resumed run may have more steps or another interval
    )

  def log(self, step: int, metrics: Mapping[str, Scalar]) -> None:
    """Sends what was measured at a step to Weights & Biases."""
    self._run.log({k: v for k, v in metrics.items() if v is not None}, step=step)

  def close(self) -> None:
    """Tells Weights & Biases that the run has ended."""
    self._run.finish()


def check_sinks(*, tensorboard: bool, wandb: str, goodput: str) -> None:
  """Checks that the packages of what is chosen are installed, and the job of `goodput`.

  Raises:
    ValueError: one is not; or see `goodput_library.recorder`.
  """
  if tensorboard:
    extras.chosen("tensorboardX", "tensorboard", "config.train.tensorboard")
  if wandb:
    extras.chosen("wandb", "wandb", "config.train.wandb_project")
  if goodput:
    goodput_library.recorder(goodput)


def _opened(path: Location, resume_step: int | None) -> LocalLines | RemoteLines:
  """Returns the file of the records, without those after the step to resume from."""
  last_step = -1 if resume_step is None else resume_step
  old = _records(path) if path.exists() else []
  kept = [line for line, record in old if record["step"] <= last_step]
  return line_file.opened(path, kept)


def read_metrics(path: str | os.PathLike) -> list[dict[str, Any]]:
  """Returns the records of a `metrics.jsonl` in order, without a half-written last line.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no regular file, it or a line of it is too long, or a line before the last one
      is no record.
  """
  return [record for _, record in _records(locations.path(path))]


def _records(path: Location) -> list[tuple[str, dict[str, Any]]]:
  """Returns the lines of a file, each with its record."""
  # A crash may leave half a character, too. Lines end with "\n" alone.
  text = locations.read_bytes(path, _MOST_BYTES).decode("utf-8", errors="replace")
  lines = text.removesuffix("\n").split("\n")
  pairs = []
  for number, line in enumerate(lines, 1):
    try:
      pairs.append((line, _record(line, f"line {number}")))
    except ValueError as error:
      if number == len(lines):
        break
      raise ValueError(f"line {number} of {path} is no record ({error}); repair it") from None
  return pairs


def _record(line: str, where: str) -> dict[str, Any]:
  if len(line) > _MOST_OF_LINE:
    raise ValueError(f"{where} has {len(line):,} characters; at most {_MOST_OF_LINE:,} are read")
  record = typed_json.parse(line, dict[str, Scalar], where)
  step = record.get("step")
  if isinstance(step, bool) or not isinstance(step, int) or step < 0:
    raise ValueError(f"step is {step!r}: an integer from 0 on is allowed")
  for name, value in record.items():
    if isinstance(value, str) and name.startswith(_OF_NUMBERS):
      raise ValueError(f"{name} is {value[:40]!r}: a number is allowed")
  return record


def _scalar(name: str, value: Any) -> Scalar:
  if value is None or isinstance(value, str):
    return value
  array = np.asarray(value)
  if array.size != 1 or array.dtype == object:
    raise ValueError(f"metric {name!r} must be a scalar, not {type(value).__name__} {array.shape}")
  item = array.item()
  return None if isinstance(item, float) and not math.isfinite(item) else item
