"""Which tokens count, in which groups, and the tokens that they are asked about."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from resjax.analysis.alignment import DECILES
from resjax.typing import Array


class Asked(NamedTuple):
  """The tokens that a batch is asked about.

  Attributes:
    ids: [3, B, T]: the token itself, the next one, and one drawn by its frequency.
    counted: bool [B, T]: whether the next token lies in the same segment.
  """

  ids: Array
  counted: Array


def next_tokens(tokens: Array, segment_ids: Array) -> tuple[Array, Array]:
  """Returns the next token of every position, and where it lies in the same segment, [B, T] each.

  Args:
    tokens: [B, T].
    segment_ids: [B, T]; 0 is padding.
  """
  last = jnp.arange(tokens.shape[1]) == tokens.shape[1] - 1
  same = (segment_ids == jnp.roll(segment_ids, -1, axis=1)) & (segment_ids != 0) & ~last
  return jnp.roll(tokens, -1, axis=1), same


def next_counts(tokens: Array, segment_ids: Array, vocab_size: int) -> Array:
  """Returns how often each token is a next one that counts, int32 [V].

  Args:
    tokens: [B, T].
    segment_ids: [B, T]; 0 is padding.
    vocab_size: V.
  """
  following, counted = next_tokens(tokens, segment_ids)
  return jnp.zeros(vocab_size, jnp.int32).at[following].add(counted.astype(jnp.int32))


def asked(tokens: Array, segment_ids: Array, counts: Array, key: Array) -> Asked:
  """Returns what a batch is asked about.

  The third token is the shuffled target: it comes as often as it does in the corpus and has
  nothing to do with its place. It is the same however the batch lies on devices.

  Args:
    tokens: [B, T].
    segment_ids: [B, T]; 0 is padding.
    counts: [V] of `next_counts` over the corpus, their sum below 2³¹.
    key: of the random numbers.
  """
  following, counted = next_tokens(tokens, segment_ids)
  upto = jnp.cumsum(counts)
  drawn = jax.random.randint(key, tokens.shape, 0, jnp.maximum(upto[-1], 1))
  foil = jnp.searchsorted(upto, drawn, side="right")
  foil = jnp.minimum(foil, len(counts) - 1)  # where nothing was counted
  return Asked(jnp.stack([tokens, following, foil]).astype(jnp.int32), counted)


def group_weights(of: Asked, deciles: Array | None) -> Array:
  """Returns which tokens are in `all`, `distinct` and, with a table, each decile, 0 or 1 [G, B, T].

  Args:
    of: the batch.
    deciles: [V] of `frequency_deciles`, or None.
  """
  this, following, _ = of.ids
  member = [jnp.ones_like(of.counted), this != following]
  if deciles is not None:
    decile = jnp.take(deciles, following)
    member += [decile == number for number in range(len(DECILES))]
  return jnp.stack([one & of.counted for one in member]).astype(jnp.float32)


def frequency_deciles(counts: np.ndarray) -> np.ndarray:
  """Returns the decile of each token by how often it comes: 0 the most frequent .. 9; int32 [V].

  Each has about a tenth of all occurrences: tokens in order of frequency, the more frequent and of
  equal ones the lower number first, are in the decile in which their middle occurrence lies.

  Args:
    counts: [V].
  """
  order = np.argsort(-counts.astype(np.int64), kind="stable")
  ordered = counts[order].astype(np.float64)
  middle = np.cumsum(ordered) - ordered / 2
  deciles = np.empty(len(counts), np.int32)
  deciles[order] = np.minimum(10 * middle / max(ordered.sum(), 1), 9)
  return deciles
