"""Comparisons of arms, against scipy, statsmodels and sweeps whose truth is known."""

import numpy as np
import pytest
from scipy import stats

from resjax.study import statistics
from resjax.study.statistics import Contrast, against_best, compare, detectable, holm, student

ARMS = ("standard", *"abcdefgh")


def _table(n, arms=ARMS, noise=1.0, effect=0.0, seed=0):
  """Returns values of arms whose noise is independent and whose seeds shift all alike."""
  random = np.random.default_rng(seed)
  shift = 5 * random.normal(size=n)
  noises = noise * random.normal(size=(len(arms), n))
  means = effect * np.arange(len(arms))
  return {
    arm: dict(enumerate(m + shift + e)) for arm, m, e in zip(arms, means, noises, strict=True)
  }


def _against_the_first(arms=ARMS):
  return [Contrast(arm, arms[0]) for arm in arms[1:]]


def test_one_contrast_is_the_paired_t_test():
  values = _table(6, ARMS[:2], effect=0.7)
  (found,) = compare(values, _against_the_first(ARMS[:2]), {Contrast("a", "standard"): 2.0})
  first, second = ([*values[arm].values()] for arm in ("a", "standard"))
  wanted = stats.ttest_rel(first, second)
  assert found.p == found.holm == pytest.approx(wanted.pvalue)
  assert found.interval == pytest.approx(wanted.confidence_interval())
  assert found.error == pytest.approx(stats.sem(found.paired))
  assert found.freedom == 5 and found.seeds == tuple(range(6))
  sides = [
    stats.ttest_1samp(found.paired, -2.0, alternative="greater").pvalue,
    stats.ttest_1samp(found.paired, 2.0, alternative="less").pvalue,
  ]
  assert found.equality_p == found.equality_holm == pytest.approx(max(sides))


def test_every_contrast_is_the_paired_t_test_of_its_own_differences():
  """Whatever the other arms do: noise of every size, arms that go together, and seeds missing."""
  values = _table(5, effect=0.3)
  for scale, arm in enumerate(ARMS):
    values[arm] = {s: y + 10.0**scale * (values["h"][s] - y) for s, y in values[arm].items()}
  del values["b"][3], values["c"][0]
  found = compare(values, _against_the_first())
  for one in found:
    first, second = values[one.contrast.arm], values["standard"]
    seeds = sorted(first.keys() & second.keys())
    wanted = stats.ttest_rel([first[s] for s in seeds], [second[s] for s in seeds])
    assert one.seeds == tuple(seeds) and one.freedom == len(seeds) - 1
    assert one.p == pytest.approx(wanted.pvalue)
    assert one.interval == pytest.approx(wanted.confidence_interval())
  multitest = pytest.importorskip("statsmodels.stats.multitest")
  p = [one.p for one in found]
  assert [one.holm for one in found] == pytest.approx(multitest.multipletests(p, method="holm")[1])


def test_two_arms_are_those_of_a_mixed_model():
  """A random shift of each seed and one deviation, fitted by restricted maximum likelihood."""
  formula = pytest.importorskip("statsmodels.formula.api")
  pandas = pytest.importorskip("pandas")
  values = _table(6, ARMS[:2], effect=0.7)
  rows = [(arm, seed, y) for arm, by in values.items() for seed, y in by.items()]
  table = pandas.DataFrame(rows, columns=["arm", "seed", "y"])
  fit = formula.mixedlm("y ~ C(arm, Treatment('standard'))", table, groups="seed").fit(reml=True)
  (found,) = compare(values, _against_the_first(ARMS[:2]))
  name = "C(arm, Treatment('standard'))[T.a]"
  assert found.mean == pytest.approx(fit.params[name])
  assert found.error == pytest.approx(fit.bse[name], rel=1e-4)


def test_equality_and_holm_are_those_of_statsmodels():
  multitest = pytest.importorskip("statsmodels.stats.multitest")
  weights = pytest.importorskip("statsmodels.stats.weightstats")
  p = np.random.default_rng(1).random(9) ** 4
  assert holm(p) == pytest.approx(multitest.multipletests(p, method="holm")[1])
  values = _table(5, ARMS[:2])
  (found,) = compare(values, _against_the_first(ARMS[:2]), {Contrast("a", "standard"): 1.3})
  assert found.equality_p == pytest.approx(
    weights.DescrStatsW(found.paired).ttost_mean(-1.3, 1.3)[0]
  )


def test_holm_by_hand():
  assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
  assert [*holm([0.9, 0.8])] == [1, 1] and [*holm([])] == []
  several = holm([[0.01, 0.04, 0.03], [0.9, 0.8, 0.001]])  # each row is a family
  assert several == pytest.approx(np.array([[0.03, 0.06, 0.06], [1, 1, 0.003]]))


def test_arms_without_a_common_seed_are_refused():
  with pytest.raises(ValueError, match="a and standard have no seed in common"):
    compare({"a": {0: 1.0}, "standard": {1: 1.0}}, [Contrast("a", "standard")])


def test_one_seed_has_no_interval_and_no_noise_has_no_width():
  (found,) = compare({"a": {0: 1.0}, "b": {0: 2.0}}, [Contrast("a", "b")])
  assert (found.mean, found.interval, found.p, found.holm) == (-1, None, None, None)
  exact = {"a": {0: 1.0, 1: 2.0}, "b": {0: 0.0, 1: 1.0}, "c": {0: 1.0, 1: 2.0}}
  asked = [Contrast("a", "b"), Contrast("a", "c")]
  differs, equals = compare(exact, asked, dict.fromkeys(asked, 0.5))
  assert differs.p < 1e-12 and differs.interval == pytest.approx((1, 1)) and differs.equality_p == 1
  assert equals.p == 1 and equals.equality_p < 1e-12


# Minimal detectable differences at 80 % power, in deviations of paired differences: of a contrast,
# and of the strictest step of Holm with eight.
DETECTABLE = {2: (11.5, 92), 3: (3.3, 9.3), 4: (2.1, 4.4), 5: (1.7, 3.0), 10: (1.0, 1.4)}


@pytest.mark.parametrize("n", DETECTABLE)
def test_detectable_differences_are_those_of_the_table(n):
  found = [detectable(n, contrasts=k) for k in (1, 8)]
  assert found == pytest.approx(DETECTABLE[n], abs=0.051, rel=0.004)


@pytest.mark.parametrize(("n", "contrasts"), [(2, 1), (3, 1), (3, 8), (5, 19), (10, 8)])
def test_detectable_differences_are_found_in_80_of_100_sweeps(n, contrasts):
  delta = detectable(n, contrasts=contrasts)
  made = np.random.default_rng(n).normal(delta, size=(10_000, n))
  assert (student(made).p() < 0.05 / contrasts).mean() == pytest.approx(0.8, abs=0.016)


def test_interval_of_a_mean():
  low, high = statistics.mean_interval([1.0, 2.0, 4.0])
  wanted = stats.ttest_1samp([1.0, 2.0, 4.0], 0).confidence_interval()
  assert (low, high) == pytest.approx((wanted.low, wanted.high))
  assert statistics.mean_interval([1.0]) is None


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_the_best_of_several_is_chosen_on_seeds_that_are_not_tested(better):
  sign = 1 if better == "lower" else -1
  made = {
    "gate": {0: 9.0, 1: 9.0, 2: 1.0, 3: 2.0},
    "lucky": {0: 1.0, 1: 2.0, 2: 8.0, 3: 7.5},  # the best one at 0 and 1, the worst one later
    "steady": {0: 3.0, 1: 3.0, 2: 3.0, 3: 3.0},
  }
  values = {arm: {seed: sign * v for seed, v in by.items()} for arm, by in made.items()}
  (found,) = against_best(values, ["gate"], ["steady", "lucky"], (0, 1), better)
  assert found.contrast == Contrast("gate", "lucky") and found.seeds == (2, 3)
  assert found.paired == (sign * -7.0, sign * -5.5)
  with pytest.raises(ValueError, match="steady has none of the seeds 7, 8"):
    against_best(values, ["gate"], ["steady"], (7, 8))
  with pytest.raises(ValueError, match="gate and steady have no seed in common"):
    against_best(values, ["gate"], ["steady", "lucky"], (0, 1, 2, 3), better)
