import numpy as np
import pytest

from resjax.train import optim
from tests.helpers.optimizers import config

EPS = np.finfo(np.float32).eps


def rates(steps, **changes):
  f = optim.schedule(config(**changes), steps)
  return np.array([f(step) for step in range(steps)], np.float64)


def test_cosine():
  got = rates(50, warmup_steps=10, learning_rate=2.0, final_fraction=0.1)
  step = np.arange(50)
  share = (step - 9) / 40
  want = np.where(step < 10, (step + 1) / 10, 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * share)))
  # The cosine of fp32 near π is off by about π · eps, at values of 2.
  np.testing.assert_allclose(got, 2 * want, atol=8 * EPS)


def test_wsd_may_be_all_decay():
  settings = {"warmup_steps": 0, "learning_rate": 2.0, "final_fraction": 0.0, "decay_fraction": 1.0}
  rate = optim.schedule(config(schedule="wsd", **settings), 5)
  np.testing.assert_allclose([rate(i) for i in range(5)], [2.0, 1.5, 1.0, 0.5, 0.0], atol=1e-7)


def test_wsd():
  got = rates(
    50, schedule="wsd", warmup_steps=10, learning_rate=2.0, final_fraction=0.1, decay_fraction=0.2
  )
  step = np.arange(50)
  want = np.minimum((step + 1) / 10, np.minimum(1, 1 - 0.9 * (step - 39) / 10))
  np.testing.assert_allclose(got, 2 * want, atol=8 * EPS)


def test_constant():
  got = rates(30, schedule="constant", warmup_steps=4, learning_rate=0.5)
  np.testing.assert_allclose(got, 0.5 * np.minimum(1, np.arange(1, 31) / 4), rtol=2 * EPS)


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 2, 7])
def test_first_peak_and_last_step(schedule, warmup):
  got = rates(20, schedule=schedule, warmup_steps=warmup, learning_rate=1.0, final_fraction=0.25)
  np.testing.assert_allclose(got[0], 1 / max(warmup, 1), rtol=2 * EPS)
  np.testing.assert_allclose(got[max(warmup - 1, 0)], 1.0, rtol=2 * EPS)
  np.testing.assert_allclose(got[-1], 1.0 if schedule == "constant" else 0.25, rtol=8 * EPS)
  assert got.max() <= 1.0 + 2 * EPS


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_one_step(schedule):
  assert rates(1, schedule=schedule, warmup_steps=0, learning_rate=1.0) == [1.0]


def test_warmup_as_long_as_the_run_ends_at_the_peak():
  np.testing.assert_allclose(rates(4, warmup_steps=4, learning_rate=1.0), [0.25, 0.5, 0.75, 1.0])


def test_a_warmup_that_does_not_fit_takes_the_room_there_is():
  np.testing.assert_allclose(rates(2, warmup_steps=20, learning_rate=1.0), [0.5, 1.0])
  wsd = config(schedule="wsd", warmup_steps=6, decay_fraction=0.5)
  assert optim.warmup_steps(wsd, 10) == 5 and optim.warmup_steps(wsd, 12) == 6
  rise = rates(10, schedule="wsd", warmup_steps=6, decay_fraction=0.5, learning_rate=1.0)
  np.testing.assert_allclose(rise[:5], [0.2, 0.4, 0.6, 0.8, 1.0])
  assert np.all(np.diff(rise[4:]) < 0)
  for schedule in ("cosine", "wsd", "constant"):
    assert rates(1, schedule=schedule, warmup_steps=3, learning_rate=1.0) == [1.0]


def test_a_schedule_has_steps():
  with pytest.raises(ValueError, match=r"config\.train\.steps is 0"):
    optim.schedule(config(), 0)
