"""What a run that goes on with another length says of its learning rate."""

import re

import numpy as np
import pytest

from configs import tiny
from resjax.train import experiment, optim, rate_jump
from resjax.train.runs import history
from resjax.train.runs.environment import Environment
from resjax.train.runs.history import Part


def run_of(steps, **settings):
  c = tiny.get_config()
  c.train.steps = steps
  c.optim.update(learning_rate=1e-2, warmup_steps=10, **settings)
  return experiment.build(c)


def explained(old, new, start):
  before = Part(1, history.settings(old.resolved), Environment())
  return "".join(rate_jump.explain(before, new, start))


def rates(text):
  return [float(number) for number in re.findall(r"(\S+) in step", text)]


def test_a_longer_cosine_jumps_and_the_line_has_both_rates():
  old, new = run_of(100, schedule="cosine"), run_of(200, schedule="cosine")
  text = explained(old, new, 100)
  # The last of 100 steps has a tenth of the peak. With 200 of them, the hundredth step behind the
  # tenth, of which there are 191, has 0.1 + 0.9 · (1 + cos(π · 91 / 190)) / 2 of it.
  expected = 1e-2 * (0.1 + 0.9 * (1 + np.cos(np.pi * 91 / 190)) / 2)
  np.testing.assert_allclose(rates(text), [1e-3, expected], rtol=5e-3)
  assert "config.train.steps was 100 and is 200: cosine" in text and "schedule=wsd" in text
  assert "config.optim.schedule=constant with learning_rate=0.001" in text
  advised = run_of(200, schedule="constant")
  assert float(optim.schedule(advised.optim, 200, 1e-3)(100)) == pytest.approx(1e-3)
  # In the middle, too, and for a shorter run.
  assert rates(explained(old, new, 50))[1] > rates(explained(old, run_of(60), 50))[1] > 0


def test_whoever_takes_the_advice_hears_of_no_jump():
  old, new = run_of(100, schedule="cosine"), run_of(200, schedule="cosine")
  for start in (50, 73, 99):
    advised = re.search(r"learning_rate=(\S+) goes", explained(old, new, start))[1]
    now = experiment.build(_with_rate(run_of(200, schedule="constant"), float(advised)))
    assert explained(old, now, start) == ""


def test_wsd_does_not_jump_before_its_decay():
  old, new = (run_of(steps, schedule="wsd", decay_fraction=0.2) for steps in (100, 200))
  assert explained(old, new, 80) == ""
  text = explained(old, new, 100)
  np.testing.assert_allclose(rates(text), [1e-3, 1e-2])
  assert "its final decay began after step 80" in text


def test_a_warm_up_that_was_cut_short():
  old, new = (run_of(steps, schedule="constant") for steps in (5, 50))
  text = explained(old, new, 5)
  np.testing.assert_allclose(rates(text), [1e-2, 6e-3])
  assert "config.train.steps was 5 and is 50" in text


def test_settings_without_a_part_in_the_next_rate_are_not_blamed():
  constant = {"schedule": "constant"}
  assert explained(run_of(50, **constant), run_of(99, **constant, final_fraction=0.5), 50) == ""
  assert explained(run_of(50), run_of(50, weight_decay=0.5), 20) == ""
  c = {"schedule": "constant", "combinator_lr_multiplier": 2.0}
  lower = experiment.build(_with_rate(run_of(99, **c), 5e-3))
  text = explained(run_of(50, **constant), lower, 50)
  assert rates(text) == [1e-2, 5e-3]
  assert text.endswith("because config.optim.learning_rate was 0.01 and is 0.005")


@pytest.mark.parametrize(
  ("name", "value"),
  [("optim.schedule", "linear"), ("optim.warmup_steps", None), ("train.steps", 0)],
)
def test_a_run_of_another_release_goes_on_though_its_rates_are_not_known(name, value):
  run = run_of(50)
  before = Part(1, history.settings(run.resolved) | {name: value}, Environment())
  assert list(rate_jump.explain(before, run, 20)) == []


def _with_rate(run, rate):
  return {**run.resolved, "optim": {**run.resolved["optim"], "learning_rate": rate}}
