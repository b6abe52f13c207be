"""The sums over rows give means and standard errors as NumPy does from all rows at once."""

import numpy as np

from resjax.study.analysis.totals import RowSums

rng = np.random.default_rng(0)
TOKENS = rng.integers(0, 9, (2, 30)).astype(float)
VALUES = 3.0 * TOKENS + rng.normal(size=(4, 2, 30)) * np.sqrt(TOKENS)


def test_batches_add_up_to_the_mean_and_its_standard_error():
  parts = [slice(0, 10), slice(10, 30)]
  found = sum(
    (RowSums.of(VALUES[..., part], TOKENS[:, part]) for part in parts[1:]),
    RowSums.of(VALUES[..., parts[0]], TOKENS[:, parts[0]]),
  )
  for group in range(2):
    used = TOKENS[group] > 0
    s, n = VALUES[:, group, used], TOKENS[group, used]
    mean = s.sum(axis=1) / n.sum()
    np.testing.assert_allclose(found.mean()[:, group], mean, rtol=1e-12)
    residuals = s - mean[:, None] * n  # their mean is zero
    want = np.sqrt(len(n) * residuals.var(axis=1, ddof=1)) / n.sum()
    np.testing.assert_allclose(found.standard_error()[:, group], want, rtol=1e-9)


def test_the_standard_error_is_how_much_the_mean_varies():
  """Over many texts of 30 rows whose tokens all have one value."""
  means, errors = [], []
  for _ in range(2000):
    n = rng.integers(1, 9, 30).astype(float)
    sums = RowSums.of((n * rng.normal(size=30))[None], n[None])
    means.append(sums.mean()[0]), errors.append(sums.standard_error()[0])
  np.testing.assert_allclose(np.mean(errors), np.std(means), rtol=0.05)


def test_less_than_two_rows_have_no_standard_error():
  sums = RowSums.of(np.array([[3.0, 0.0], [0.0, 0.0]]), np.array([[2.0, 0.0], [0.0, 0.0]]))
  np.testing.assert_array_equal(sums.mean(), [1.5, np.nan])
  assert np.isnan(sums.standard_error()).all()
