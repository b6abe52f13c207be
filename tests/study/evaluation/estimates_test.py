"""Bootstraps over documents: against scipy, shared by models, and of averages over texts."""

import numpy as np
import pytest
from scipy import stats

from resjax.study.evaluation import estimates
from resjax.study.evaluation.estimates import COLUMNS, TEXT_METRICS

N = 60


def table(seed, quality=1.0):
  """Units of very different sizes, as documents are."""
  draw = np.random.default_rng(0)
  sizes = draw.integers(5, 500, N)
  nats = sizes * quality * (1 + 0.2 * np.random.default_rng(seed).standard_normal(N))
  columns = {"nats": nats, "tokens": sizes, "bytes": 4 * sizes, "words": sizes // 2 + 1}
  return np.stack([columns.get(name, np.ones(N)) for name in COLUMNS], 1).astype(np.float64)


def drawn(units, name, text="text"):
  metric = TEXT_METRICS[name]
  return float(metric(units.sum(0))), metric(estimates.resampled(units, text))


@pytest.mark.parametrize("name", TEXT_METRICS)
def test_standard_errors_are_those_of_scipy(name):
  units, metric = table(1), TEXT_METRICS[name]
  found = estimates.estimate(drawn(units, name))
  top, bottom = (units[:, COLUMNS.index(column)] for column in (metric.top, metric.bottom))

  def statistic(top, bottom, axis):
    return metric.of_ratio(top.sum(axis) / bottom.sum(axis))

  theirs = stats.bootstrap(
    (top, bottom), statistic, paired=True, vectorized=True, n_resamples=10000, method="basic",
    rng=np.random.default_rng(0),
  )  # fmt: skip
  assert found.value == pytest.approx(statistic(top, bottom, 0), rel=1e-12)
  assert found.stderr == pytest.approx(theirs.standard_error, rel=0.1)


def test_models_share_the_resamples_of_a_text():
  """A model that is worse by a constant factor everywhere differs by it in every resample."""
  one, other = table(1), table(1)
  other[:, 0] *= 1.01
  found = estimates.difference(drawn(other, "nats_per_token"), drawn(one, "nats_per_token"))
  alone = estimates.estimate(drawn(one, "nats_per_token"))
  assert found.value == pytest.approx(0.01 * alone.value)
  assert found.stderr == pytest.approx(0.01 * alone.stderr)
  assert found.interval[0] < found.value < found.interval[1]
  np.testing.assert_array_equal(*(estimates.resampled(one, "text") for _ in range(2)))
  assert not np.array_equal(estimates.resampled(one, "text"), estimates.resampled(one, "other"))


def test_blocks_of_resamples_are_drawn_as_one(monkeypatch):
  units = table(1)
  whole = estimates.resampled(units, "text")
  monkeypatch.setattr(estimates, "_DRAWN", 7 * N)
  # A product of matrices may add its N terms in another order where it has fewer rows.
  error = N * np.finfo(np.float64).eps
  np.testing.assert_allclose(estimates.resampled(units, "text"), whole, rtol=error)
  np.testing.assert_array_equal(whole[:, COLUMNS.index("units")], N)


def test_macro_averages_count_each_text_once():
  small, large = table(1)[:10], table(2, quality=2.0)
  parts = [drawn(small, "bits_per_byte", "a"), drawn(large, "bits_per_byte", "b")]
  found, errors = (
    estimates.estimate(estimates.macro(parts)),
    [estimates.estimate(part).stderr for part in parts],
  )
  assert found.value == pytest.approx((parts[0][0] + parts[1][0]) / 2)
  # The texts are drawn independently.
  assert found.stderr == pytest.approx(np.hypot(*errors) / 2, rel=0.1)


def test_a_single_unit_has_no_standard_error():
  assert estimates.resampled(table(1)[:1], "text") is None
  assert estimates.estimate((1.0, None)) == estimates.Estimate(1.0, None)
  assert estimates.difference((2.0, None), (1.0, None)) == estimates.Difference(1.0, None, None)
  assert estimates.macro([(1.0, None), (2.0, np.ones(3))]) == (1.5, None)
