"""The record of a run: `metrics.jsonl`, and TensorBoard and Weights & Biases beside it."""

import importlib
import json
import math
import os
import tempfile
import uuid
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from resjax import locations
from resjax.locations import Location
from resjax.records import line_file

FILE_NAME = "metrics.jsonl"

Scalar = bool | int | float | str | None


class Sink(Protocol):
  """Something that takes the records of a run."""

  def log(self, step: int, metrics: Mapping[str, Scalar]) -> None:
    """Takes one record; steps never decrease."""

  def close(self) -> None:
    """Writes out what is held back."""


class MetricLogger:
  """Writes records to `metrics.jsonl` in the workdir, the source of truth, and to other sinks.

  A record is one line, {"step": n, name: value, ...}. JSON has no NaN or infinity: they become
  null. Records of one step may be several (training, evaluation); log those of step n and `flush`
  before the checkpoint of step n, and a resumed run neither misses nor repeats one.

  Args:
    workdir: a folder, made where missing.
    resume_step: step of the restored checkpoint; later records are dropped. None: no checkpoint,
      the record starts empty.
    tensorboard: also write event files to `tensorboard` in the workdir.
    wandb_project: where not empty, also log to this project of Weights & Biases.
    config: resolved settings, for Weights & Biases.
    enabled: False writes nothing, for all processes but the first.

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
    self._sinks: list[Sink] = []
    self._last_step = 0 if resume_step is None else resume_step
    if not enabled:
      return
    folder = locations.path(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    # The optional packages first: where one is missing, nothing has been touched.
    others: list[Sink] = []
    if tensorboard:
      others.append(TensorBoardSink(folder, resume_step))
    if wandb_project:
      others.append(WandbSink(folder, resume_step, wandb_project, config))
    self._records = JsonlSink(folder / FILE_NAME, resume_step)
    self._sinks = [self._records, *others]

  def __enter__(self) -> "MetricLogger":
    return self

  def __exit__(self, *exc: object) -> None:
    self.close()

  def log(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Records the metrics after `step` steps.

    Args:
      step: not below that of the last record.
      metrics: name such as train/loss to a number, a string, or an array of one element.

    Raises:
      ValueError: the step goes back, a value is no scalar, or a metric is named `step`.
    """
    if not self._sinks:
      return
    if step < self._last_step:
      raise ValueError(f"step {step} comes after step {self._last_step} in {FILE_NAME}")
    if "step" in metrics:
      raise ValueError("a metric may not be named 'step'; the record has that key")
    plain = {name: _scalar(name, value) for name, value in metrics.items()}
    self._last_step = step
    for sink in self._sinks:
      sink.log(step, plain)

  def flush(self) -> None:
    """Returns when all records are in `metrics.jsonl`.

    Raises:
      ValueError: another process writes there.
    """
    if self._sinks:
      self._records.flush()

  def close(self) -> None:
    """Closes all sinks."""
    sinks, self._sinks = self._sinks, []
    for sink in sinks:
      sink.close()


class JsonlSink:
  """One JSON object per line."""

  def __init__(self, path: Location, resume_step: int | None):
    last_step = -1 if resume_step is None else resume_step
    old = _records(path) if path.exists() else []
    kept = [line for line, record in old if record["step"] <= last_step]
    self._file = line_file.opened(path, kept)

  def log(self, step: int, metrics: Mapping[str, Scalar]) -> None:
    """Adds one line."""
    self._file.add(json.dumps({"step": step, **metrics}, allow_nan=False))

  def flush(self) -> None:
    """Returns when all lines are there."""
    self._file.flush()

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


class TensorBoardSink:
  """Event files, by tensorboardX; numbers only."""

  def __init__(self, folder: Location, resume_step: int | None):
    module = _optional("tensorboardX", "tensorboard", "config.train.tensorboard")
    # TensorBoard then hides what an earlier attempt wrote from this step on.
    purge = 0 if resume_step is None else resume_step + 1
    # The name has a time in seconds; the suffix keeps apart what restarts within one.
    self._writer = module.SummaryWriter(
      logdir=str(folder / "tensorboard"), purge_step=purge, filename_suffix=f".{purge}"
    )

  def log(self, step: int, metrics: Mapping[str, Scalar]) -> None:
    """Adds the numbers of one record."""
    for name, value in metrics.items():
      if isinstance(value, int | float):
        self._writer.add_scalar(name, value, step)

  def close(self) -> None:
    """Writes out and closes the event file."""
    self._writer.close()


class WandbSink:
  """A run of Weights & Biases, which a resumed run continues.

  Its number is kept in `wandb_id` in the workdir. It ignores steps that it already has.
  """

  def __init__(
    self, folder: Location, resume_step: int | None, project: str, config: Mapping[str, Any]
  ):
    module = _optional("wandb", "wandb", "config.train.wandb_project")
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
      allow_val_change=True,  # more steps, another interval
    )

  def log(self, step: int, metrics: Mapping[str, Scalar]) -> None:
    """Adds one record."""
    self._run.log({k: v for k, v in metrics.items() if v is not None}, step=step)

  def close(self) -> None:
    """Finishes the run."""
    self._run.finish()


def read_metrics(path: str | os.PathLike) -> list[dict[str, Scalar]]:
  """Records of a `metrics.jsonl`, in order; a half-written last line is left out.

  Raises:
    ValueError: a line before the last is no record.
  """
  return [record for _, record in _records(locations.path(path))]


def _records(path: Location) -> list[tuple[str, dict[str, Scalar]]]:
  """Lines with their records."""
  # A crash may leave half a character too; only "\n" ends a line.
  lines = path.read_bytes().decode("utf-8", errors="replace").removesuffix("\n").split("\n")
  pairs = []
  for number, line in enumerate(lines, 1):
    try:
      record = json.loads(line)
      record["step"] = int(record["step"])
    except (ValueError, TypeError, KeyError):
      if number == len(lines):
        break
      raise ValueError(f"line {number} of {path} is no record; delete or repair it") from None
    pairs.append((line, record))
  return pairs


def _scalar(name: str, value: Any) -> Scalar:
  if value is None or isinstance(value, str):
    return value
  array = np.asarray(value)
  if array.size != 1 or array.dtype == object:
    raise ValueError(f"metric {name!r} must be a scalar, not {type(value).__name__} {array.shape}")
  item = array.item()
  return None if isinstance(item, float) and not math.isfinite(item) else item


def _optional(module: str, extra: str, setting: str) -> ModuleType:
  try:
    return importlib.import_module(module)
  except ModuleNotFoundError as error:
    if error.name != module:
      raise
    raise ValueError(f"{setting} needs {module}: pip install 'resjax[{extra}]'") from None
