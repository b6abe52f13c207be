"""The switch layer of rows for which it is known."""

import numpy as np
import pytest

from resjax.study.analysis.switch_layer import RANK_RATIO, switch_layer

ROWS = 40
TOKENS = np.full(ROWS, 10.0)


def rows(target, other=1.0, third=2.0, noise=0.0):
  """Returns sums [P, 3, rows] whose target has these mean log-ranks along depth."""
  rng = np.random.default_rng(0)
  means = np.stack([np.array([t, other, third]) for t in target])
  return 10 * (means[..., None] + noise * rng.normal(size=(*means.shape, ROWS)))


def test_it_is_where_the_target_comes_first_for_good():
  for place in range(6):
    target = [3.0] * place + [0.5] * (5 - place)
    found = switch_layer(rows(target), TOKENS)
    want = None if place == 5 else place
    assert (found.index, found.lower, found.upper) == (want, want, want)
    assert found.share == (place < 5)


def test_a_crossing_that_does_not_last_is_none():
  assert switch_layer(rows([3, 0.5, 3, 0.5, 0.5]), TOKENS).index == 3
  assert switch_layer(rows([3, 0.5, 0.5, 3]), TOKENS).index is None


def test_a_target_no_better_than_the_third_token_has_no_switch():
  assert switch_layer(rows([3, 0.5, 0.5], third=0.4), TOKENS).index is None


def test_the_interval_covers_what_rows_differ_in_and_is_the_same_again():
  noisy = rows([3, 3, 3, 3, 3, 1.05, 0.95, 0.5], noise=0.5)
  found = switch_layer(noisy, TOKENS)
  assert found.lower < found.upper and found.lower <= found.index <= found.upper
  assert found == switch_layer(noisy, TOKENS)
  assert (found.level, found.num_bootstrap) == (0.95, 1000)
  narrow = switch_layer(noisy, TOKENS, level=0.01)
  assert narrow.upper - narrow.lower <= found.upper - found.lower


def test_the_interval_leaves_out_half_of_the_rest_on_each_side():
  """The first row leads in 4% of the draws, between a fortieth and a twentieth."""
  behind = 0.28 + np.where(np.arange(ROWS) % 2, 1.0, -1.0)
  early = 10 * np.stack([1 + behind, np.ones(ROWS), np.full(ROWS, 3.0)])
  late = 10 * np.stack([np.full(ROWS, 0.5), np.ones(ROWS), np.full(ROWS, 2.0)])
  at_level = {
    level: switch_layer(np.stack([early, late, late, late]), TOKENS, level=level)
    for level in (0.95, 0.9)
  }
  assert [found.index for found in at_level.values()] == [1, 1]
  assert [found.lower for found in at_level.values()] == [0, 1]


def test_an_interval_may_reach_to_nowhere():
  found = switch_layer(rows([3, 3, 0.98], noise=0.5), TOKENS)
  assert found.upper is None and 0 < found.share < 0.95
  assert found.index is None and found.is_localised  # no switch


def test_a_target_must_rank_clearly_better_than_the_third_token():
  edge = 2 + np.log(RANK_RATIO)
  for target, index in ((edge - 1e-6, 2), (edge + 1e-6, None)):
    found = switch_layer(rows([3, 3, target, target], other=2.5, third=2.0), TOKENS)
    assert found.index == index and found.share == (index is not None)


def test_a_switch_that_may_be_anywhere_is_not_localised():
  noisy = rows([1.1, 0.99, 0.99, 0.98, 0.5], noise=0.5)
  found = switch_layer(noisy, TOKENS)
  assert found.share == 1 and 2 * (found.upper - found.lower) >= 4
  assert found.index is None and not found.is_localised


@pytest.mark.parametrize("width", [1, 2])
def test_an_interval_must_be_narrower_than_half_of_the_depth(width):
  """Half of the rows switch at position 0 and half at `width`, so that the interval has both."""
  target = np.full((4, 3, ROWS), [[3.0], [1.0], [3.0]])
  target[width:, 0] = 0.5
  target[:width, 0, ::2], target[:width, 0, 1::2] = -9, 11.0
  found = switch_layer(10 * target, TOKENS)
  assert (found.lower, found.upper, found.share) == (0, width, 1)
  assert (found.index is None) == (2 * width >= 3)


def test_no_tokens_have_no_switch():
  assert switch_layer(rows([3, 0.5]), np.zeros(ROWS)) is None
