"""Arguments of other types than methods say are one line that names them."""

import inspect
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from resjax import Experiment, Pretrained


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
  return Experiment("tiny", {"workdir": tmp_path_factory.mktemp("untrained") / "run"})


MISTAKES = [
  ("generate", {"prompts": 3}, "prompts=3 must be a text or a list of texts"),
  ("generate", {"prompts": ["a", None]}, r"=\['a', None\] must be a text or a list of texts"),
  ("generate", {"prompts": []}, r"prompts=\[\] are none; give one"),
  ("generate", {"num_tokens": "3"}, "num_tokens='3' must be a whole number"),
  ("generate", {"num_tokens": -1}, "num_tokens=-1 must be at least 0"),
  ("generate", {"temperature": None}, "temperature=None must be a finite number"),
  ("generate", {"num_samples": 0}, "num_samples=0 must be at least 1"),
  ("generate", {"seed": 2**40}, "seed=1099511627776 must be a whole number of at most 4,29"),
  ("evaluate", {"texts": ["a"]}, r"texts=\['a'\]; give sources by name"),
  ("evaluate", {"tasks": "core"}, "tasks='core' must be a list of texts"),
  ("evaluate", {"compare": ["runs/x"]}, "must be a list of models, each an Experiment or a Pretr"),
  ("evaluate", {"stride": 1.5}, "stride=1.5 must be a whole number or a list of whole numbers"),
  ("evaluate", {"stride": []}, r"stride=\[\] has no number"),
  ("evaluate", {"limit": -1}, "limit=-1 must be at least 0"),
  ("evaluate", {"out": 3}, "out=3 must be a text or a path or None"),
  ("analyze", {"data": ["a"]}, r"data=\['a'\] must be a text or a path or None"),
  ("analyze", {"readings": "closed"}, "readings='closed' must be a list of texts"),
  ("analyze", {"tokens": -1}, "tokens=-1 must be at least 0"),
  ("analyze", {"batch_size": 0}, "batch_size=0 must be at least 1"),
  ("train", {"profile_steps": 3}, "profile_steps=3 must be a text"),
  ("load", {"folder": None}, "folder=None must be a text or a path"),
]


@pytest.mark.parametrize(("method", "arguments", "words"), MISTAKES)
def test_mistakes_are_one_line(untrained, method, arguments, words):
  with pytest.raises(ValueError, match=words) as raised:
    getattr(untrained, method)(**arguments)
  assert "\n" not in str(raised.value)


def test_what_is_no_model_is_no_path():
  with pytest.raises(ValueError, match="path=3 must be a text or a path"):
    Pretrained(3)
  with pytest.raises(ValueError, match="hf_ignore='abc' must be a list of texts"):
    Pretrained("folder", "abc")


def test_arguments_of_the_right_types_go_on(untrained):
  with pytest.raises(ValueError, match="has no checkpoint yet"):
    untrained.generate(np.array(["a", "b"]), num_tokens=np.int64(1), temperature=np.float32(1))
  with pytest.raises(ValueError, match="has no checkpoint yet"):
    untrained.generate("a", num_tokens=jnp.int32(1), temperature=jnp.float32(1), seed=2.0)
  with pytest.raises(ValueError, match="path='nowhere' has no checkpoint"):
    Pretrained(pathlib.Path("nowhere"))


def test_names_of_arguments_are_those_of_the_method(untrained):
  with pytest.raises(TypeError, match=r"generate\(\) got an unexpected keyword argument 'top'"):
    untrained.generate(top=3)
  assert list(inspect.signature(untrained.train).parameters) == ["profile_steps"]


@pytest.mark.parametrize("config", [{}, {"model": 3}, {"model": {"residual": 3}}])
def test_a_config_without_its_sections_is_one_line(config):
  with pytest.raises(ValueError, match=r"config.* is missing|must be a section"):
    Experiment(config)
