"""What a run does, told to ml-goodput-measurement, whose recorder writes to Cloud Logging."""

import datetime
import re
import time
from typing import Any

from resjax.base import extras

SETTING = "config.train.goodput_job"
# Phases of a ledger that the library has events for, besides steps; all others end these.
_LOADING = "input"
_EVENTS = {"eval": "evaluation", "save": "checkpoint_save"}
_BETWEEN = "other"  # comes between two batches of an evaluation, too


def recorder(job: str) -> Any:
  """Returns the library's `GoodputRecorder` of a job, which has written nothing yet.

  Raises:
    ValueError: the name is malformed, the library is not installed, or it finds no project of
      Google Cloud or no credentials. Whether these may write is not known before it writes.
  """
  if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]*", job):
    raise ValueError(f"{SETTING}={job!r} must be letters, digits, '.', '_' and '-', such as run1")
  library = extras.chosen("ml_goodput_measurement", "goodput", SETTING).goodput
  try:
    return library.GoodputRecorder(job_name=job, logger_name=f"goodput_{job}", logging_enabled=True)
  except Exception as error:  # of a client of Google Cloud, whatever its class is
    why = " ".join(str(error).split())
    raise ValueError(f"{SETTING}={job} cannot write to Cloud Logging: {why}") from error


class GoodputLibrary:
  """Turns the phases of a ledger into records of the library; a context manager.

  The library's own calculator makes goodput of them, for example
  `GoodputCalculator(job_name=JOB, logger_name="goodput_JOB").get_job_goodput()`. Until the first
  batch a job prepares its training. Then batches are data loading, the start of each program is
  that of a step, and evaluations and saves are its custom events. At the end it records the start
  of one more step, since the calculator tells events apart between two steps only, and finds that
  a job went on where a step starts again. The job ends where no error or signal ended the process.

  Args:
    job: the name of the job; a run that goes on has that of its earlier processes.
    done: how many steps are done.
    seconds: how long ago this process of the run began.

  Raises:
    ValueError: see `recorder`.
  """

  def __init__(self, job: str, done: int, seconds: float):
    self._to = recorder(job)
    self._step, self._open, self._prepared = done, "", False
    began = datetime.datetime.fromtimestamp(time.time() - seconds, datetime.UTC)
    self._to.record_job_start_time(began)
    self._to.record_training_preparation_start_time(began)

  def phase(self, name: str) -> None:
    """Takes the name of the phase that begins, see `Ledger`."""
    if not self._prepared and name == _LOADING:
      self._to.record_training_preparation_end_time()
      self._prepared = True
    if not self._prepared or name in (self._open, _BETWEEN):
      return
    self._end()
    if name == _LOADING:
      self._to.record_data_loading_start_time()
    elif name in _EVENTS:
      self._to.record_custom_badput_event_start_time(custom_badput_event_type=_EVENTS[name])
    elif name == "dispatch":
      self._step += 1
      self._to.record_step_start_time(self._step)
    self._open = name

  def _end(self) -> None:
    if self._open == _LOADING:
      self._to.record_data_loading_end_time()
    elif self._open in _EVENTS:
      self._to.record_custom_badput_event_end_time(custom_badput_event_type=_EVENTS[self._open])
    self._open = ""

  def __enter__(self) -> "GoodputLibrary":
    return self

  def __exit__(self, *exc: object) -> None:
    self._end()
    if not self._prepared:
      self._to.record_training_preparation_end_time()
    self._to.record_step_start_time(self._step + 1)
    if exc[0] is None:
      self._to.record_job_end_time()
    self._to.flush()
