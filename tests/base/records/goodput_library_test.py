"""What ml-goodput-measurement is told: of a ledger's phases, and by a run."""

import contextlib
import datetime
import sys
import time
import types
from typing import ClassVar

import pytest

from resjax.base.records import GoodputLibrary, Ledger, metrics_log
from tests.helpers import trained
from tests.helpers.runs import write_text


class GoodputRecorder:
  """The published methods of the library's recorder, which note when they are called."""

  made: ClassVar[list["GoodputRecorder"]] = []

  def __init__(self, job_name: str, logger_name: str, logging_enabled=False):
    self.names, self.calls = (job_name, logger_name, logging_enabled), []
    self.made.append(self)

  def flush(self):
    self.calls.append("flush")

  def record_step_start_time(self, step: int, start_time=None):
    self.calls.append(f"step {step}")

  def record_job_start_time(self, start_time=None):
    self.began = start_time
    self.calls.append("job")

  def record_job_end_time(self, end_time=None):
    self.calls.append("job ends")

  def record_training_preparation_start_time(self, start_time=None):
    assert start_time == self.began
    self.calls.append("prepares")

  def record_training_preparation_end_time(self, end_time=None):
    self.calls.append("prepared")

  def record_data_loading_start_time(self, start_time=None):
    self.calls.append("loads")

  def record_data_loading_end_time(self, end_time=None):
    self.calls.append("loaded")

  def record_custom_badput_event_start_time(
    self, start_time=None, custom_badput_event_type="unknown"
  ):
    self.calls.append(custom_badput_event_type)

  def record_custom_badput_event_end_time(self, end_time=None, custom_badput_event_type="unknown"):
    self.calls.append(f"{custom_badput_event_type} ends")


@pytest.fixture
def made(monkeypatch):
  """The recorders that are made in place of the library's."""
  goodput = types.SimpleNamespace(GoodputRecorder=GoodputRecorder)
  package = types.SimpleNamespace(goodput=goodput)
  monkeypatch.setitem(sys.modules, "ml_goodput_measurement", package)
  monkeypatch.setattr(GoodputRecorder, "made", [])
  return GoodputRecorder.made


STEP = ["loads", "loaded"]
BEGINS = ["job", "prepares"]


def goes_through(ledger, *phases):
  for phase in phases:
    with ledger.phase(phase):
      pass


def test_phases_become_events(made):
  ledger = Ledger()
  goes_through(ledger, "init", "restore")
  library = GoodputLibrary("run1", done=4, seconds=30.0)
  with library, ledger.follow(library.phase):
    # What comes before the first batch is preparation, an evaluation that was owed too.
    goes_through(ledger, "compile", "eval", "input", "dispatch", "device", "log")
    goes_through(ledger, "input", "dispatch", "device", "log", "eval", "eval", "log", "save")
    goes_through(ledger, "input", "dispatch", "save")
  goes_through(ledger, "eval")
  (recorder,) = made
  assert recorder.names == ("run1", "goodput_run1", True)
  age = datetime.datetime.now(datetime.UTC) - recorder.began
  assert 30.0 <= age.total_seconds() < 40.0
  saves = ["checkpoint_save", "checkpoint_save ends"]
  assert recorder.calls == [
    *(*BEGINS, "prepared", *STEP, "step 5", *STEP, "step 6"),
    *("evaluation", "evaluation ends", *saves, *STEP, "step 7", *saves),
    *("step 8", "job ends", "flush"),
  ]


def test_a_job_that_is_stopped_does_not_end(made):
  ledger, library = Ledger(), GoodputLibrary("run1", done=4, seconds=0.0)
  with pytest.raises(KeyboardInterrupt), library, ledger.follow(library.phase):
    raise KeyboardInterrupt
  assert made[0].calls == [*BEGINS, "prepared", "step 5", "flush"]


def test_a_run_tells_its_steps_and_one_that_goes_on_the_rest(made, tmp_path):
  root = write_text(tmp_path)
  for steps, first in ((2, 1), (3, 3)):
    config = trained.settings(root, root / "run", "standard", steps=steps, goodput_job="job")
    config.mesh.update(data=-1, fsdp=1)
    config.model.update(num_layers=1, d_model=16, mlp_dim=16)
    trained.run(config)
    told = made[-1].calls
    assert [call for call in told if call.startswith("step")] == [
      f"step {step}" for step in range(first, steps + 2)
    ]
    assert told[-2:] == ["job ends", "flush"] and "evaluation" in told
    assert told.count("prepared") == 1 and told.count("loads") == told.count("loaded")


def test_what_the_library_refuses_is_one_line(made, monkeypatch):
  def refuse(*args, **kwargs):
    raise OSError("Your default credentials\n were not found.")

  monkeypatch.setattr(GoodputRecorder, "__init__", refuse)
  sinks = {"tensorboard": False, "wandb": ""}
  with pytest.raises(
    ValueError, match="goodput_job=a cannot write to Cloud Logging: Your default "
  ):
    metrics_log.check_sinks(**sinks, goodput="a")
  for name in ("a b", "-a", "a/b", "a\n"):
    with pytest.raises(ValueError, match="must be letters, digits"):
      metrics_log.check_sinks(**sinks, goodput=name)


def test_the_librarys_own_calculator_finds_the_goodput(monkeypatch, tmp_path):
  """Six steps of 0.2 s in two processes, two evaluations, 2 s of preparation, 0.5 s down."""
  package = pytest.importorskip("ml_goodput_measurement")
  entries = []

  class Log:
    def __init__(self, job_name, *args, **kwargs):
      self.job_name, self.job_start_time = job_name, None

    def write_cloud_logging_entry(self, entry):
      entries.append(entry)

    def flush(self):
      pass

    def read_cloud_logging_entries(self, *args, **kwargs):
      return entries, (None, None)

  monkeypatch.setattr(package.goodput, "_CloudLogger", Log)
  for done, ends in ((0, pytest.raises(KeyboardInterrupt)), (3, contextlib.nullcontext())):
    ledger, library = Ledger(), GoodputLibrary("a", done, seconds=1.0)
    with ends, library, ledger.follow(library.phase):
      for _ in range(3):
        goes_through(ledger, "input")
        with ledger.phase("dispatch"):
          time.sleep(0.2)
      with ledger.phase("eval"):
        time.sleep(0.4)
      if not done:
        raise KeyboardInterrupt
    assert any("job_end_time" in entry for entry in entries) == bool(done)
    if not done:
      time.sleep(1.5)  # 1 s of which the second process prepares
  calculator = package.goodput.GoodputCalculator(
    "a", "goodput_a", cloud_logger=Log("a"), cache_dir=str(tmp_path)
  )
  goodput, badput, last = calculator.get_job_goodput(include_badput_breakdown=True)
  kinds = {kind.name: seconds for kind, seconds in badput.items() if seconds}
  total = 1.0 + 2 * (0.6 + 0.4) + 1.5
  assert last == 7 and goodput == pytest.approx(100 * 1.2 / total, abs=4)
  assert kinds["TRAINING_PREP"] == pytest.approx(100 * 2.0 / total, abs=4)
  evaluations = kinds["CUSTOM_BADPUT_EVENTS"]["EVALUATION"]
  assert evaluations == pytest.approx(100 * 0.8 / total, abs=4)
  assert kinds["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] == pytest.approx(50 / total, abs=4)
