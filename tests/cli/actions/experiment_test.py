"""An experiment in Python: one short run, all that is asked of it, and nothing left behind."""

import base64
import faulthandler
import gc
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from resjax import Experiment, Pretrained
from resjax.base.processes import signals
from resjax.cli.actions.settings import read_config
from resjax.train import trainer
from tests.helpers import pretrained, trained
from tests.helpers.runs import write_text
from tests.helpers.trained import STEPS


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  return write_text(tmp_path_factory.mktemp("experiment"))


def ending():
  """Threads that read ahead, and those of Orbax's event loops, which it closes without waiting."""
  return {t for t in threading.enumerate() if t.name.startswith(("grain", "asyncio"))}


# Threads of another module's tests, which hold what they made or wait for the garbage collector.
OF_OTHERS = set()


@pytest.fixture(autouse=True, scope="module")
def threads_of_others():
  gc.collect()
  OF_OTHERS.update(ending())


def state_of_the_process():
  """Handlers, threads, paths; threads that end by themselves are given a moment."""
  deadline = time.monotonic() + 300
  while ending() - OF_OTHERS:
    assert time.monotonic() < deadline, threading.enumerate()
    time.sleep(0.05)
  handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
  threads = {t.name for t in set(threading.enumerate()) - OF_OTHERS if not t.daemon}
  watchdogs = [thread for thread in threading.enumerate() if thread.name == "watchdog"]
  return handlers, threads, watchdogs, faulthandler.is_enabled(), sys.path[:], os.getcwd()


@pytest.fixture(scope="module")
def settings(root):
  return trained.settings(root, root / "run", "attn_res", log_every=1)


@pytest.fixture(scope="module")
def run(settings):
  """The experiment, its result, and the state of the process before and after."""
  before = state_of_the_process()
  experiment = Experiment(settings)
  result = experiment.train()
  return experiment, result, before, state_of_the_process()


def test_a_result_has_model_metrics_and_paths(root, run):
  experiment, result, before, after = run
  assert before == after
  assert result.step == STEPS and result.workdir == experiment.workdir == root / "run"
  assert result.checkpoint.name == str(STEPS) and (result.checkpoint / "params").is_dir()
  assert result.plots and all(plot.exists() for plot in result.plots)
  logits = result.model(np.zeros((2, 8), np.int32))
  assert logits.shape[:2] == (2, 8)
  assert result.tokenizer.decode(result.tokenizer.encode_batch(["gate"])[0]) == "gate"
  metrics = result.metrics
  assert metrics["step"] == [0, 1, 2, 3] and metrics.num_rows == 4
  steps, losses = metrics.series("train/loss")
  assert steps == [1, 2, 3] and losses[-1] < losses[0]
  assert experiment.metrics == metrics and repr(experiment).endswith("3 of 3 steps>")
  assert len(repr(result)) < 1000  # no arrays
  picture = base64.b64encode(result.plots[0].read_bytes()).decode()
  assert picture in result._repr_html_()  # what a notebook shows


def test_a_second_call_has_nothing_to_train(run, capsys):
  experiment, result, *_ = run
  again = experiment.train()
  assert "that is the last one, nothing to train" in capsys.readouterr().out
  assert again.step == STEPS and again.metrics["train/loss"] == result.metrics["train/loss"]


def test_loaded_it_says_the_same(root, run):
  experiment, *_ = run
  loaded, saved = Experiment.load(root / "run"), Pretrained(root / "run" / "checkpoints" / "3")
  options = {"num_tokens": 3, "temperature": 0, "num_samples": 2}
  texts = experiment.generate(["the depth", "gate"], **options)
  assert len(texts) == 4 and texts[0] == texts[1] and texts[2] == texts[3]
  for other in (loaded, saved):
    assert other.generate(["the depth", "gate"], **options) == texts
    assert other.workdir == root / "run"


@pytest.mark.slow
def test_scores(root, run, tmp_path):
  experiment, *_ = run
  held_out = experiment.evaluate(batch_size=4, limit=2)
  assert held_out["stdlib"]["bits_per_byte"].value > 0
  assert "bits_per_byte" in repr(held_out) and max(map(len, repr(held_out).splitlines())) <= 80
  assert not held_out.files
  both = experiment.evaluate(
    {"own": str(root / "text" / "0.txt"), "more": str(root / "text" / "1.txt")},
    compare=[Experiment.load(root / "run")],
    out=tmp_path / "scores",
  )
  names = [one["model"] for one in both.models]
  assert names == [f"run, step {STEPS}", f"run, step {STEPS} (2)"]
  difference = both.report.differences[names[1], "own"]["bits_per_byte"]
  assert difference.value == pytest.approx(0, abs=1e-6)
  assert [file.name for file in both.files] == ["results.json", "samples.parquet"]
  with pytest.raises(KeyError, match="own, more"):
    both["other"]


@pytest.mark.slow
def test_where_it_shifts(root, run):
  experiment, *_ = run
  found = experiment.analyze(tokens=128, text="depth width")
  assert found.page == root / "run" / "analysis" / "report.html" and found.page.exists()
  group = found.results[0].alignment.readings["closed"]["all"]
  assert group.num_tokens == 128 - 128 // trained.T
  assert "shift" in repr(found) and str(found.page) in repr(found)
  assert found._repr_html_().count('src="data:image/png;base64,') == 1
  with pytest.raises(ValueError, match="--text is empty"):
    experiment.analyze(text=" ")


def test_a_folder_of_hugging_face(root, tmp_path):
  model = Pretrained(pretrained.folder(tmp_path))
  assert len(model.generate("gate", num_tokens=3)) == 1
  with pytest.raises(ValueError, match="nothing to score"):
    model.evaluate()
  scored = model.evaluate({"own": str(root / "text" / "0.txt")}, max_length=32)
  assert scored["own"]["bits_per_byte"].value > 0
  with pytest.raises(ValueError, match="texts='own'; give sources by name"):
    model.evaluate("own")
  with pytest.raises(ValueError, match="no text"):
    model.analyze()


def test_what_is_not_trained_says_so(root, settings, tmp_path):
  new = Experiment(settings, {"workdir": tmp_path / "new"})
  with pytest.raises(ValueError, match=r"no checkpoint yet; call train\(\) first"):
    new.generate()
  assert new.metrics.num_rows == 0 and repr(new).endswith("0 of 3 steps>")
  with pytest.raises(ValueError, match="a Hugging Face folder"):
    Pretrained(tmp_path)
  with pytest.raises(ValueError, match=r"run\.json is missing"):
    Experiment.load(tmp_path)


@pytest.mark.parametrize(
  ("number", "error"),
  [("SIGINT", KeyboardInterrupt), pytest.param("SIGTERM", SystemExit, marks=pytest.mark.release)],
)
@pytest.mark.slow
def test_an_interrupt_saves_and_leaves_the_process_alone(
  settings, tmp_path, monkeypatch, number, error
):
  before = state_of_the_process()
  experiment = Experiment(settings, {"workdir": tmp_path / "run"})
  step = trainer.Trainer._step

  def interrupted(self, train_step):
    values = step(self, train_step)
    signal.raise_signal(getattr(signal, number))
    return values

  with monkeypatch.context() as patch, pytest.raises(error) as raised:
    patch.setattr(trainer.Trainer, "_step", interrupted)
    experiment.train()
  assert state_of_the_process() == before
  assert number == "SIGTERM" or "stopped after step 1, which is saved" in str(raised.value)
  assert repr(experiment).endswith("1 of 3 steps>")
  assert experiment.train().metrics["step"] == [0, 1, 2, 3]  # it goes on from there


def test_signals_are_left_alone_outside_of_the_main_thread():
  found = []

  def work():
    with signals.stop_on_request() as stop:
      found.append(stop.asked)

  thread = threading.Thread(target=work)
  thread.start()
  thread.join()
  assert found == [False]


def test_one_of_several_processes_is_refused(settings, monkeypatch):
  for name, value in (("COORDINATOR_ADDRESS", "host:1"), ("NUM_PROCESSES", 2), ("PROCESS_ID", 0)):
    monkeypatch.setenv(f"JAX_{name}", str(value))
  with pytest.raises(ValueError, match=r"resjax\.Experiment runs in one process"):
    Experiment(settings)


def test_a_config_is_a_copy(settings):
  experiment = Experiment(settings, {"workdir": "elsewhere"})
  experiment.config.train.steps = 7
  assert experiment.config.train.steps == STEPS and settings.workdir != "elsewhere"
  assert experiment.config.to_json() == read_config(settings, {"workdir": "elsewhere"}).to_json()
