import dataclasses
import math

import pytest

from configs import base
from resjax import optim
from tests.helpers.optimizers import config


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
