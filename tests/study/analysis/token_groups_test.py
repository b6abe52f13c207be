"""The tokens that count, and the groups they are in."""

import jax
import jax.numpy as jnp
import numpy as np

from resjax.study.analysis.token_groups import (
  candidates,
  frequency_deciles,
  group_weights,
  next_counts,
)

TOKENS = jnp.array([[3, 3, 5, 3, 1, 1], [2, 4, 4, 0, 0, 0]])
SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 0, 0, 0]])
COUNTED = [[True, True, False, True, True, False], [True, True, False, False, False, False]]


def test_next_tokens_of_the_same_segment_count():
  of = candidates(TOKENS, SEGMENTS, next_counts(TOKENS, SEGMENTS, 6), jax.random.key(0))
  np.testing.assert_array_equal(of.counted, COUNTED)
  np.testing.assert_array_equal(of.ids[0], TOKENS)
  np.testing.assert_array_equal(of.ids[1][:, :-1], TOKENS[:, 1:])
  np.testing.assert_array_equal(next_counts(TOKENS, SEGMENTS, 6), [0, 2, 0, 1, 2, 1])


def test_shuffled_targets_come_as_often_as_in_the_corpus():
  counts = jnp.array([0, 1, 0, 6, 0, 3])
  shape = jnp.zeros((50, 100), jnp.int32)
  shuffled = np.asarray(candidates(shape, shape + 1, counts, jax.random.key(0)).ids[2])
  shares = np.bincount(shuffled.ravel(), minlength=6) / shuffled.size
  np.testing.assert_allclose(shares, [0, 0.1, 0, 0.6, 0, 0.3], atol=0.03)
  assert shares[0] == shares[2] == shares[4] == 0


def test_groups_are_all_tokens_those_with_another_next_one_and_deciles():
  counts = next_counts(TOKENS, SEGMENTS, 6)
  of = candidates(TOKENS, SEGMENTS, counts, jax.random.key(0))
  everything, distinct, *deciles = np.asarray(group_weights(of, frequency_deciles_of(counts)))
  np.testing.assert_array_equal(everything, COUNTED)
  np.testing.assert_array_equal(distinct[0], [0, 1, 0, 1, 0, 0])
  assert len(deciles) == 20  # of the next tokens, and of the shuffled targets
  np.testing.assert_array_equal(sum(deciles[:10]), everything)
  np.testing.assert_array_equal(sum(deciles[10:]), everything)
  assert len(group_weights(of, None)) == 2


def frequency_deciles_of(counts):
  return jnp.asarray(frequency_deciles(np.asarray(counts)))


def test_a_decile_has_a_tenth_of_the_occurrences():
  counts = np.random.default_rng(0).integers(0, 50, 5000)
  deciles = frequency_deciles(counts)
  shares = np.bincount(deciles, counts, minlength=10) / counts.sum()
  np.testing.assert_allclose(shares, 0.1, atol=0.002)
  smallest = [counts[deciles == number].min() for number in range(10)]
  largest = [counts[deciles == number].max() for number in range(10)]
  assert all(low >= high for low, high in zip(smallest[:-1], largest[1:], strict=True))


def test_a_token_that_is_half_of_the_text_has_deciles_for_itself():
  deciles = frequency_deciles(np.array([1, 50, 1, 48, 0]))
  assert deciles[1] == 2 and deciles[3] == 7 and deciles[4] == 9
