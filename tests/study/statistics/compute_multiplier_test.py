"""Scaling laws and multipliers of ladders that are made by known ones."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from resjax.study.statistics.compute_multiplier import (
  Ladder,
  Multiplier,
  ScalingLaw,
  fit,
  multipliers,
  verdict,
)

FLOOR, SCALE, EXPONENT = 1.7, 160.0, 0.12
TOKENS = np.array([68e6, 230e6, 545e6, 1.84e9])
FLOPS = np.array([0.05e9, 0.12e9, 0.22e9, 0.7e9])


def law(compute, saving=1.0):
  """The loss of a system that needs `saving` times less compute than the law."""
  return FLOOR + SCALE * (saving * np.asarray(compute)) ** -EXPONENT


def ladder(saving=1.0, **changes):
  losses = law(TOKENS * FLOPS, saving)
  return Ladder(**{"losses": losses, "tokens": TOKENS, "flops_per_token": FLOPS} | changes)


def known(floor=1.7, exponent=0.0941):
  return ScalingLaw("tokens", floor, 1.0, exponent, 0.0, 1, np.zeros((2, 4)))


def test_an_exact_ladder_gives_its_law_back():
  found = fit(ladder(), "FLOPs")
  assert (found.floor, found.scale, found.exponent) == pytest.approx((1.7, 160, 0.12), rel=1e-4)
  assert found.spread < 1e-8 and found.freedom == 1
  np.testing.assert_allclose(found.loss(TOKENS * FLOPS), ladder().losses, rtol=1e-8)


def test_a_given_floor_leaves_two_parameters():
  found = fit(ladder(), "FLOPs", floor=FLOOR)
  assert (found.scale, found.exponent) == pytest.approx((SCALE, EXPONENT), rel=1e-8)
  assert (found.floor, found.freedom) == (FLOOR, 2)


@pytest.mark.parametrize("saving", [0.8, 1.0, 1.25])
def test_a_known_saving_is_found_on_every_rung(saving):
  reference = ladder()
  found = multipliers(fit(reference, "FLOPs"), reference, ladder(saving))
  np.testing.assert_allclose([one.value for one in found], saving, rtol=1e-4)
  assert all(one.low <= one.value <= one.high for one in found)


@pytest.mark.parametrize(
  ("gain", "factor"), [(0.01, 1.07), (0.0015, 1.01)], ids=["gain of an arm", "noise of a seed"]
)
def test_numbers_of_a_published_exponent(gain, factor):
  # The exponent is marin's (issues 4447 and 8096), for a loss of 3.28 and a floor of 1.7.
  reference = Ladder([3.28] * 4, TOKENS)
  found = multipliers(known(), reference, Ladder([3.28 - gain] * 4, TOKENS))
  assert found[0].value == pytest.approx(((3.28 - 1.7) / (3.28 - gain - 1.7)) ** (1 / 0.0941))
  assert round(found[0].value, 2) == factor


def test_tokens_and_flops_agree_where_a_token_costs_the_same_on_all_rungs():
  """An arm of 1.5 times the FLOPs, at the same tokens and 0.8 times their speed."""
  price, speed = np.full(4, 2e9), np.full(4, 1e5)
  reference = ladder(losses=law(TOKENS * price), flops_per_token=price, tokens_per_second=speed)
  arm = ladder(
    losses=law(TOKENS * price, 1.3), flops_per_token=1.5 * price, tokens_per_second=0.8 * speed
  )
  for currency in ("tokens", "FLOPs"):
    found = multipliers(fit(reference, currency), reference, arm)
    # Mixed currencies would give 1.5 times as much, or as little.
    np.testing.assert_allclose([one.value for one in found], 1.3 * 0.8, rtol=1e-4)


def test_speeds_count_only_where_both_are_known():
  reference = ladder(tokens_per_second=np.full(4, 1e5))
  found = multipliers(fit(reference, "FLOPs"), reference, ladder(1.25))
  np.testing.assert_allclose([one.value for one in found], 1.25, rtol=1e-4)


@pytest.mark.parametrize("noisier", [(1, 1), (1, 4), (4, 1)])
@pytest.mark.parametrize(
  ("rungs", "floor"), [(4, None), (4, FLOOR), pytest.param(6, None, marks=pytest.mark.release)]
)
@pytest.mark.slow
def test_coverage_of_the_interval(rungs, floor, noisier):
  """95 % or more of the intervals of noisy ladders hold the multiplier, whichever is noisier."""
  rng, saving, trials, hit = np.random.default_rng(0), 1.2, 400, np.zeros(rungs)
  compute = np.geomspace(3e15, 1e18, rungs)
  price = np.ones(rungs)
  for _ in range(trials):
    noise = np.exp(5e-4 * rng.normal(size=(2, rungs)) * np.array(noisier)[:, None])
    reference = Ladder(law(compute) * noise[0], compute, price)
    arm = Ladder(law(compute, saving) * noise[1], compute, price)
    found = multipliers(fit(reference, "FLOPs", floor), reference, arm)
    hit += [one.low <= saving <= one.high for one in found]
  # Three standard errors of a share of 0.95 among 400 are 0.033.
  assert (hit / trials > 0.95 - 0.033).all(), hit / trials


def test_an_interval_follows_the_noise():
  noise = np.exp(1e-3 * np.array([1, -1, 1, -1]))
  reference, arm = ladder(losses=ladder().losses * noise), ladder(1.1)
  narrow = multipliers(fit(reference, "FLOPs", FLOOR), reference, arm)[-1]
  twice = ladder(losses=ladder().losses * noise**2)
  wide = multipliers(fit(twice, "FLOPs", FLOOR), twice, arm)[-1]
  widths = [math.log(one.high / one.low) for one in (narrow, wide)]
  assert widths[1] == pytest.approx(2 * widths[0], rel=0.1)


def test_the_arm_s_own_noise_widens_its_interval():
  """The line of log(L − L∞) over log C by polyfit, Satterthwaite's freedom by hand."""
  reference = ladder(losses=ladder().losses * np.exp(1e-3 * np.array([1, -1, 1, -1])))
  noise = np.exp(3e-3 * np.array([1, 1, -1, -1]))
  arm = ladder(1.1, losses=law(TOKENS * FLOPS, 1.1) * noise)
  found = fit(reference, "FLOPs", FLOOR)
  one = multipliers(found, reference, arm)[2]
  losses, above = np.array(arm.losses), np.array(arm.losses) - FLOOR
  weights = above / losses
  x = np.log(TOKENS * FLOPS)
  line = np.polyfit(x, np.log(above), 1, w=weights)
  own = weights * (np.log(above) - np.polyval(line, x))
  exact = multipliers(found, reference, dataclasses.replace(arm, losses=law(TOKENS * FLOPS, 1.1)))[
    2
  ]
  t = stats.t.ppf(0.975, 2)  # of the reference alone: an arm without noise adds nothing
  first = (math.log(exact.high / exact.low) / 2 / t) ** 2
  second = own @ own / 2 / (weights[2] * found.exponent) ** 2
  freedom = 2 * (first + second) ** 2 / (first**2 + second**2)
  half = stats.t.ppf(0.975, freedom) * math.sqrt(first + second)
  assert math.log(one.high / one.low) / 2 == pytest.approx(half, rel=0.02)
  assert one.high / one.low > exact.high / exact.low


def test_a_loss_below_the_floor_has_no_bound():
  low = [3.0, 2.5, 2.0, 1.6]
  found = multipliers(known(), Ladder([3.3, 3.2, 3.1, 3.0], TOKENS), Ladder(low, TOKENS))
  assert found[-1] == Multiplier(math.inf, 0.0, math.inf)
  assert verdict(found, TOKENS) == (False, "rung 4 is not above the floor")


@pytest.mark.parametrize(
  ("values", "claim"),
  [
    ((1.1, 1.1, 1.1, 1.1), (True, "saves 9.1%")),
    ((1.08, 1.12, 1.09, 1.25), (True, "saves 20.0%")),
    ((1.1, 1.1, 0.98, 1.2), (False, "S is 0.98 on rung 3")),
    ((1.4, 1.3, 1.2, 1.1), (False, "S falls, by 15.0% for ten times the compute")),
  ],
)
def test_a_claim_needs_every_rung_and_no_fall(values, claim):
  found = [Multiplier(value, value / 2, value * 2) for value in values]
  assert verdict(found, [1e15, 3e15, 1e16, 3e16]) == claim


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"losses": [3.0, 2.9, 2.8]}, "3 rungs are too few"),
    ({"tokens": [1e6] * 3}, "tokens has 3 values for 4 rungs"),
    ({"losses": [3.0, 2.9, math.nan, 2.7]}, "losses=.* must be finite and above 0"),
    ({"flops_per_token": [0.0] * 4}, "flops_per_token=.* must be finite and above 0"),
  ],
)
def test_a_ladder_that_is_none(changes, words):
  with pytest.raises(ValueError, match=words):
    ladder(**changes)


def test_refusals():
  with pytest.raises(ValueError, match="FLOPs per token are not known; take the currency tokens"):
    fit(ladder(flops_per_token=None), "FLOPs")
  with pytest.raises(ValueError, match="currency='FLOP' is not known; allowed: FLOPs, tokens"):
    fit(ladder(), "FLOP")
  with pytest.raises(ValueError, match=r"floor=9 must be at least 0 and below the smallest loss"):
    fit(ladder(), "FLOPs", floor=9)
  with pytest.raises(ValueError, match="do not fall as a power of compute"):
    fit(dataclasses.replace(ladder(), losses=[3.0, 3.1, 3.2, 3.3]), "FLOPs")
  five = Ladder([3, 2.9, 2.8, 2.7, 2.6], [1e6, 2e6, 3e6, 4e6, 5e6])
  with pytest.raises(ValueError, match="5 rungs of the arm, 4 of the reference"):
    multipliers(known(), Ladder([3.0] * 4, TOKENS), five)
