import re

import pytest

from configs.base import get_config
from resjax.base.ranges import read
from resjax.data.config import CorpusConfig, DataConfig, TokenizerConfig


def _config(**changes):
  values = {"root": "r", "seq_len": 8, "corpora": {"a": {"source": "x"}}}
  return DataConfig(**(values | {"tokenizer": TokenizerConfig()} | changes))


def test_base_config_fits():
  values = get_config().data.to_dict()
  config = read(DataConfig, values, "config.data")
  assert config.corpora == (("stdlib", CorpusConfig("python-stdlib")),)
  assert config.tokenizer == TokenizerConfig("bpe", 8192, 20_000_000)
  assert config.splits == ("train", "validation", "test")
  assert hash(config) == hash(read(DataConfig, values, "config.data"))


def test_corpora_are_sorted_pairs():
  corpora = {"b": {"source": "x"}, "a": CorpusConfig("y")}
  assert [name for name, _ in _config(corpora=corpora).corpora] == ["a", "b"]
  assert _config(corpora=_config(corpora=corpora).corpora) == _config(corpora=corpora)


def test_a_corpus_of_weight_0_is_as_if_it_were_not_named():
  corpora = {"a": {"source": "x", "weight": 2.0}, "b": {"source": "y", "weight": 0.0}}
  assert _config(corpora=corpora) == _config(corpora={"a": {"source": "x", "weight": 2.0}})


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"root": ""}, "config.data.root"),
    ({"seq_len": 1}, "config.data.seq_len is 1; at least 2"),
    ({"corpora": {}}, "config.data.corpora"),
    ({"corpora": {"A/b": {"source": "x"}}}, "'A/b'"),
    ({"corpora": {"a": {"source": ""}}}, "config.data.corpora.a.source"),
    ({"corpora": {"a": {"source": "x", "format": "csv"}}}, "corpora.a.format is 'csv'"),
    ({"corpora": {"a": {"source": "x", "field": ""}}}, "corpora.a.field"),
    ({"corpora": {"a": {"source": "x", "weight": -1.0}}}, "corpora.a.weight is -1.0"),
    ({"corpora": {"a": {"source": "x", "weight": 0.0}}}, "corpora is ['a']; name at least one"),
    ({"corpora": {"a": {"source": "x", "weight": float("nan")}}}, "corpora.a.weight"),
    ({"corpora": {"a": {"sauce": "x"}}}, "corpora.a is 'sauce'; not a setting"),
    ({"corpora": {"a": {"format": "text"}}}, "source is missing"),
    ({"validation_fraction": 1.0}, "config.data.validation_fraction is 1.0"),
    ({"test_fraction": -0.1}, "config.data.test_fraction is -0.1"),
    ({"validation_fraction": 0.6, "test_fraction": 0.4}, "nothing is left"),
  ],
)
def test_values_out_of_range_name_the_setting(changes, message):
  with pytest.raises(ValueError, match=re.escape(message)) as caught:
    _config(**changes)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  ("values", "message"),
  [
    (("wordpiece",), "config.data.tokenizer.name is 'wordpiece'; allowed: bpe, byte"),
    (("bpe", 256), "config.data.tokenizer.vocab_size is 256"),
    (("bpe", 300, 0), "config.data.tokenizer.train_bytes is 0"),
  ],
)
def test_tokenizer_values_out_of_range(values, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    TokenizerConfig(*values)


def test_splits_without_fraction_are_not_built():
  assert _config(validation_fraction=0.0).splits == ("train", "test")
  assert _config(validation_fraction=0.0, test_fraction=0.0).splits == ("train",)
