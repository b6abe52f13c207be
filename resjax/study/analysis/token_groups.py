"""The tokens that an alignment counts, the groups they are in, and the candidates of the lens."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from resjax.base import Array
from resjax.study.analysis.alignment import DECILES


class Candidates(NamedTuple):
  """The tokens whose rank and probability the lens gives, for each token of a batch.

  Attributes:
    ids: the token itself, the next one, and one drawn by its frequency [3, B, T].
    counted: whether the next token lies in the same segment, bool [B, T].
  """

  ids: Array
  counted: Array


def next_tokens(tokens: Array, segment_ids: Array) -> tuple[Array, Array]:
  """Returns the next token of every token [B, T], and whether it lies in the same segment [B, T].

  Tokens and segment_ids are [B, T]; segment 0 is padding, here and below.
  """
  last = jnp.arange(tokens.shape[1]) == tokens.shape[1] - 1
  same = (segment_ids == jnp.roll(segment_ids, -1, axis=1)) & (segment_ids != 0) & ~last
  return jnp.roll(tokens, -1, axis=1), same


def next_counts(tokens: Array, segment_ids: Array, vocab_size: int) -> Array:
  """Returns how often each token of the vocabulary is a next token that counts, int32 [V]."""
  following, counted = next_tokens(tokens, segment_ids)
  return jnp.zeros(vocab_size, jnp.int32).at[following].add(counted.astype(jnp.int32))


def candidates(tokens: Array, segment_ids: Array, counts: Array, key: Array) -> Candidates:
  """Returns the candidates of a batch.

  The third candidate, the shuffled target, is drawn as often as it occurs in the corpus, and does
  not depend on its place or on how the batch is split over devices.

  Args:
    tokens: [B, T].
    segment_ids: [B, T].
    counts: the `next_counts` of the corpus [V], whose sum is below 2³¹.
    key: the key of the random numbers.
  """
  following, counted = next_tokens(tokens, segment_ids)
  upto = jnp.cumsum(counts)
  drawn = jax.random.randint(key, tokens.shape, 0, jnp.maximum(upto[-1], 1))
  shuffled = jnp.searchsorted(upto, drawn, side="right")
  shuffled = jnp.minimum(shuffled, len(counts) - 1)  # Stays in V if nothing was counted.
  return Candidates(jnp.stack([tokens, following, shuffled]).astype(jnp.int32), counted)


def group_weights(batch: Candidates, deciles: Array | None) -> Array:
  """Returns 1 for the tokens of each group and 0 for the others, float32 [G, B, T].

  The groups are `all`, `distinct` and, given the `frequency_deciles` [V], each decile of the next
  token, and each decile of the shuffled target: what chance gives to tokens of that frequency.
  """
  this, following, shuffled = batch.ids
  member = [jnp.ones_like(batch.counted), this != following]
  if deciles is not None:
    for drawn in following, shuffled:
      decile = jnp.take(deciles, drawn)
      member += [decile == number for number in range(len(DECILES))]
  return jnp.stack([one & batch.counted for one in member]).astype(jnp.float32)


def frequency_deciles(counts: np.ndarray) -> np.ndarray:
  """Returns the decile of each token by its frequency, from 0 for the most frequent, int32 [V].

  Each decile has about a tenth of all occurrences. Occurrences are ordered by the frequency of
  their token, most frequent first, then by its number; the decile of a token is that of its middle
  occurrence. The counts are [V].
  """
  order = np.argsort(-counts.astype(np.int64), kind="stable")
  ordered = counts[order].astype(np.float64)
  middle = np.cumsum(ordered) - ordered / 2
  deciles = np.empty(len(counts), np.int32)
  deciles[order] = np.minimum(10 * middle / max(ordered.sum(), 1), 9)
  return deciles
