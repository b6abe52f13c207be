import dataclasses
import math

import pytest

from configs import base
from resjax.train import optim
from tests.helpers.optimizers import config


def test_factors_by_name():
  given = ("stream_scale=0.01", "mix/kernel=2")
  assert config(combinator_lr_multipliers=given).combinator_factors() == {
    "stream_scale": 0.01,
    "mix/kernel": 2.0,
  }


@pytest.mark.parametrize("text", ["query", "=2", "query=x", "query=-1", "query=inf", "query=nan"])
def test_factors_that_are_none(text):
  with pytest.raises(ValueError, match=r"combinator_lr_multipliers=.*; allowed: NAME=FACTOR, each"):
    config(combinator_lr_multipliers=("other=1", text))
  with pytest.raises(ValueError, match=r"'query=2'; allowed: NAME=FACTOR, each name once"):
    config(combinator_lr_multipliers=("query=1", "query=2"))


def test_fields_are_those_of_the_base_config():
  assert [f.name for f in dataclasses.fields(optim.OptimizerConfig)] == list(base.optim())


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("name", "adam"),
    ("learning_rate", 0.0),
    ("learning_rate", math.inf),
    ("schedule", "cosin"),
    ("warmup_steps", -1),
    ("decay_fraction", 0.0),
    ("decay_fraction", 1.1),
    ("final_fraction", -0.1),
    ("b1", 1.0),
    ("b2", math.nan),
    ("eps", 0.0),
    ("weight_decay", -0.1),
    ("muon_momentum", 1.0),
    ("combinator_lr_multiplier", -1.0),
    ("combinator_lr_multiplier", math.inf),
    ("clip_norm", -1.0),
  ],
)
def test_settings_out_of_range(name, value):
  reason = "is not known; allowed: " if isinstance(value, str) else "must be finite and "
  with pytest.raises(ValueError, match=rf"config\.optim\.{name}={value!r} {reason}\w"):
    config(**{name: value})
