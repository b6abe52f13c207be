"""A command lays out its devices once, when its config becomes a run, and has one vocabulary."""

import contextlib
import io
import json

import pytest
from rich.console import Console

from resjax.base.sharding import layout as layout_module
from resjax.data.config import BYTE_VOCAB
from resjax.train import experiment, loop, program
from resjax.train.dry_run import dry_run
from resjax.train.runs import workdir
from tests.helpers import layouts, trained
from tests.helpers.runs import write_text


class Built(Exception):
  """Ends a run where its steps would begin."""


@pytest.fixture
def meshes(monkeypatch):
  """The meshes that are made during a test."""
  found, make_mesh = [], layout_module.make_mesh
  monkeypatch.setattr(
    layout_module, "make_mesh", lambda *args: found.append(make_mesh(*args)) or found[-1]
  )
  return found


@pytest.fixture
def config(tmp_path):
  return trained.settings(write_text(tmp_path), tmp_path / "run", "gate")


def test_training_makes_one_layout(meshes, config, monkeypatch):
  trainers = []

  def stop(trainer, *_):
    trainers.append(trainer)
    raise Built

  monkeypatch.setattr(loop.Trainer, "run_steps", stop)
  with contextlib.suppress(Built):
    loop.train(experiment.build(config), Console(file=io.StringIO()))
  (trainer,) = trainers
  assert len(meshes) == 1 and trainer.model.layout.mesh is meshes[0]


def test_a_dry_run_and_a_compilation_make_one_layout(meshes, config):
  run = experiment.build(config)
  dry_run(run, Console(file=io.StringIO()))
  assert program.build(run).model.layout is run.layout and len(meshes) == 1


def test_a_saved_run_makes_one_layout_or_takes_the_given_one(meshes, config, tmp_path):
  run = experiment.build(config)
  record = {"config": run.resolved, "identity": {}, "data_fingerprint": "0", "costs": {}}
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / workdir.RECORD).write_text(json.dumps(record))
  given = layouts.layout()
  del meshes[:]
  assert experiment.load(config.workdir, given).layout is given and not meshes
  assert experiment.load(config.workdir).layout.mesh is meshes[0] and len(meshes) == 1


def test_before_the_data_the_vocabulary_is_what_the_tokenizer_may_have(config):
  assert experiment.build(config).decoder.vocab_size == BYTE_VOCAB
  config.data.tokenizer.update(name="bpe", vocab_size=777)
  assert experiment.build(config).decoder.vocab_size == 777
