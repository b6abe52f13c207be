"""Corpora that users add to a config: on the command line, in Python, in sweeps."""

import re

import pytest

from configs import tiny
from resjax.cli.actions import settings
from resjax.data.config import CorpusConfig
from resjax.study import config_tree
from resjax.study.sweeps import runs
from resjax.train import experiment
from tests.data.conftest import make_texts, write_folder
from tests.helpers import forks

_CODE = {"data.corpora.code.source": "src", "data.corpora.code.weight": 2}


def corpora(config):
  return dict(experiment.data_config(config).corpora)


def test_a_corpus_is_added_and_another_left_out():
  wanted = {"stdlib": CorpusConfig("python-stdlib"), "code": CorpusConfig("src", weight=2)}
  assert corpora(settings.read_config("tiny", _CODE)) == wanted
  assert corpora(runs.make_run(tiny.get_config(), "a", "a", None, _CODE).config) == wanted
  without = {**_CODE, "data.corpora.stdlib.weight": 0}
  assert corpora(settings.read_config("tiny", without)) == {"code": wanted["code"]}
  nested = {"data": {"corpora": {"code": {"source": "src", "format": "text"}}}}
  found = corpora(settings.read_config("tiny", nested))
  assert found["code"] == CorpusConfig("src", "text") and found["stdlib"] == wanted["stdlib"]


@pytest.mark.parametrize(
  ("override", "words"),
  [
    ({"data.corpora.stdlb.weight": 2}, "there is no corpus 'stdlb' beside stdlib; did you mean 's"),
    ({"data.corpora.code.source": "x", "data.corpora.code.wieght": 2}, "wieght"),
    (
      {"data.corpora.code.source": "x", "data.corpora.code.weight": "x"},
      "data.corpora.code.weight",
    ),
    ({"data.corpora.stdlib.weight": 0}, "config.data.corpora is ['stdlib']; name at least one"),
    ({"data.corpora.code.source": ""}, "config.data.corpora.code.source is ''; name a source"),
    ({"data.corpora.Code.source": "x"}, "config.data.corpora is 'Code'; names may hold lower-case"),
  ],
)
def test_mistakes_name_the_setting(override, words):
  with pytest.raises(ValueError, match=re.escape(words)) as caught:
    corpora(settings.read_config("tiny", override))
  assert "\n" not in str(caught.value)


def test_a_config_without_corpora_stays_as_it_is():
  config = tiny.get_config().model
  config_tree.add_corpora(config, _CODE)
  assert "data" not in config


def test_on_the_command_line(tmp_path):
  code = write_folder(tmp_path / "code", make_texts(30))
  usual = ("--config=tiny", f"--config.data.root={tmp_path / 'root'}", "--config.data.seq_len=32")
  usual += ("--config.data.tokenizer.name=byte", "--config.data.corpora.stdlib.weight=0")
  run = forks.command("build_dataset")
  exit_code, output = run(*usual, f"--config.data.corpora.code.source={code}")
  assert exit_code == 0 and "code: dropped 0" in output and "stdlib" not in output, output
  for word, said in (
    ("--config.data.corpora.code.weight=2", "config.data.corpora.code.weight: there is no corpus"),
    ("--config.data.corpora.my-code.source=x", "config.data.corpora.my-code.source: the command"),
    (f"--config.data.corpora.code={code}", "there is no setting 'code'"),
  ):
    exit_code, output = run(*usual, word)
    assert exit_code == 1 and output.startswith("error: ") and output.count("\n") == 1
    assert said in output, output
