"""Comparisons of arms, against scipy, statsmodels and sweeps whose truth is known."""

import numpy as np
import pytest
from scipy import stats

from resjax.study import statistics
from resjax.study.statistics import Contrast, against_best, compare, contrasts, detectable, holm

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
  assert found.freedom == 5 and not found.own and found.seeds == tuple(range(6))
  sides = [
    stats.ttest_1samp(found.paired, -2.0, alternative="greater").pvalue,
    stats.ttest_1samp(found.paired, 2.0, alternative="less").pvalue,
  ]
  assert found.equality_p == pytest.approx(max(sides))


@pytest.mark.parametrize("n", [2, 3, 5])
def test_pooled_contrasts_are_those_of_least_squares_on_arms_and_seeds(n):
  formula = pytest.importorskip("statsmodels.formula.api")
  pandas = pytest.importorskip("pandas")
  values = _table(n, effect=0.3)
  rows = [(arm, str(seed), y) for arm, by in values.items() for seed, y in by.items()]
  table = pandas.DataFrame(rows, columns=["arm", "seed", "y"])
  fit = formula.ols("y ~ C(arm, Treatment('standard')) + C(seed)", table).fit()
  for found in compare(values, _against_the_first()):
    name = f"C(arm, Treatment('standard'))[T.{found.contrast.arm}]"
    assert found.mean == pytest.approx(fit.params[name])
    assert found.p == pytest.approx(fit.pvalues[name])
    assert found.interval == pytest.approx(tuple(fit.conf_int().loc[name]))
    assert found.freedom == fit.df_resid == 8 * (n - 1)


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
  assert holm([0.9, 0.8]) == [1, 1] and holm([]) == []


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.slow
def test_intervals_hold_the_truth_in_95_of_100_sweeps(n):
  sweeps, held, rejected = 1000, 0, 0
  for seed in range(sweeps):
    found = compare(_table(n, seed=seed), _against_the_first())
    held += sum(d.interval[0] <= 0 <= d.interval[1] for d in found)
    rejected += min(d.holm for d in found) < 0.05
  assert 0.93 <= held / (8 * sweeps) <= 0.97
  assert rejected / sweeps <= 0.065  # Holm: a false finding in at most 5 of 100 sweeps.


def test_an_arm_that_spreads_more_has_its_own_deviation():
  values = _table(5)
  wild = np.random.default_rng(7).normal(size=5) * 50
  values["c"] = {seed: y + wild[seed] for seed, y in values["c"].items()}
  found = {d.contrast.arm: d for d in compare(values, _against_the_first())}
  assert [arm for arm, d in found.items() if d.own] == ["c"]
  alone = stats.ttest_rel([*values["c"].values()], [*values["standard"].values()])
  assert found["c"].p < found["c"].holm and found["c"].p == pytest.approx(alone.pvalue)
  assert found["c"].freedom == 4
  others = [arm for arm in ARMS if arm != "c"]
  same = compare({arm: values[arm] for arm in others}, _against_the_first(others))
  assert found["a"].interval == pytest.approx(same[0].interval) and found["a"].freedom == 7 * 4
  # With two seeds a spread tells nothing.
  two = {arm: {seed: by[seed] for seed in (0, 1)} for arm, by in values.items()}
  assert not any(d.own for d in compare(two, _against_the_first()))


def test_missing_seeds_leave_the_pairs_that_there_are():
  values = _table(4)
  del values["b"][3], values["c"][0]
  found = {d.contrast.arm: d for d in compare(values, _against_the_first())}
  assert found["b"].seeds == (0, 1, 2) and found["c"].seeds == (1, 2, 3)
  assert found["a"].freedom == 8 * 3 - 2
  assert np.diff(found["b"].interval)[0] > np.diff(found["a"].interval)[0]
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


# Minimal detectable differences at 80 % power, in deviations of paired differences, 8 contrasts.
DETECTABLE = {2: (11.5, 2.3, 3.3), 3: (3.3, 1.7, 2.3), 5: (1.7, 1.3, 1.7), 10: (1.0, 0.9, 1.2)}


@pytest.mark.parametrize("n", DETECTABLE)
def test_detectable_differences_are_those_of_the_table(n):
  own, pooled, strictest = DETECTABLE[n]
  assert detectable(n, n - 1) == pytest.approx(own, abs=0.051)
  assert detectable(n, 8 * (n - 1)) == pytest.approx(pooled, abs=0.051)
  assert detectable(n, 8 * (n - 1), contrasts=8) == pytest.approx(strictest, abs=0.051)


def test_detectable_differences_are_found_in_80_of_100_sweeps():
  delta = detectable(3, 8 * 2) * 2**0.5  # the deviation of a difference is √2 that of a value
  hits = 0
  for seed in range(1000):
    values = _table(3, seed=seed)
    values["a"] = {s: y + delta for s, y in values["a"].items()}
    hits += compare(values, _against_the_first())[0].p < 0.05
  assert 0.76 <= hits / 1000 <= 0.84


def test_interval_of_a_mean():
  low, high = statistics.mean_interval([1.0, 2.0, 4.0])
  wanted = stats.ttest_1samp([1.0, 2.0, 4.0], 0).confidence_interval()
  assert (low, high) == pytest.approx((wanted.low, wanted.high))
  assert statistics.mean_interval([1.0]) is None


def test_residual_variance_of_two_arms_is_half_that_of_their_differences():
  values = _table(6, ARMS[:2])
  variance, freedom = contrasts.residual_variance(values)
  paired = [values["a"][s] - values["standard"][s] for s in range(6)]
  assert 2 * variance == pytest.approx(np.var(paired, ddof=1)) and freedom == 5


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
