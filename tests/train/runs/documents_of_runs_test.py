"""A run of a release without `config.data.tokenizer.documents` goes on with its documents."""

import types

import pytest

from configs import tiny
from resjax.train import experiment
from resjax.train.runs import workdir


@pytest.mark.parametrize(
  ("recorded", "given", "want"),
  [
    ({"name": "byte"}, "auto", ""),
    ({"name": "byte"}, "eos", "eos"),
    ({"name": "byte", "documents": "auto"}, "auto", "auto"),
    (None, "auto", "auto"),
  ],
)
def test_documents_of_a_run_that_goes_on(tmp_path, monkeypatch, recorded, given, want):
  config = tiny.get_config()
  config.workdir, config.data.tokenizer.documents = str(tmp_path), given
  if recorded is not None:
    (tmp_path / workdir.RECORD).touch()
  record = types.SimpleNamespace(config={"data": {"tokenizer": recorded}})
  monkeypatch.setattr(workdir, "read", lambda folder: record)
  run = workdir.as_begun(experiment.build(config))
  assert run.data.tokenizer.documents == want
  assert run.resolved["data"]["tokenizer"]["documents"] == want


def test_a_config_without_the_setting_has_its_default():
  config = tiny.get_config()
  del config.data.tokenizer["documents"], config.data.tokenizer["markup"]
  said = experiment.build(config).resolved["data"]["tokenizer"]
  assert (said["documents"], said["markup"]) == ("auto", "text")
