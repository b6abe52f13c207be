"""What the tokens of a row leave for those that follow, in decoding."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from resjax.combinators import Combinator
from resjax.models.config import DecoderConfig
from resjax.nn.kv_cache import KeyValues
from resjax.typing import Array, PyTree


class TokensInRows(NamedTuple):
  """Where the tokens of whole rows stand.

  Attributes:
    positions: the position of each token in its document [B, T].
    segment_ids: the document that each token belongs to [B, T]; 0 is padding.
  """

  positions: Array
  segment_ids: Array


class FirstTokens(NamedTuple):
  """Where the tokens stand that come first into an empty cache.

  Attributes:
    positions: the position of each token in its row [B, T], padding not counted.
    segment_ids: 1 for a token, 0 for padding [B, T].
  """

  positions: Array
  segment_ids: Array


class TokensInCache(NamedTuple):
  """Where T new tokens stand that follow those of a cache.

  Attributes:
    length: the number of slots that earlier tokens fill, a scalar.
    positions: the position of each new token in its row [B, T], padding not counted.
    segment_ids: 1 for a token, 0 for padding [B, T].
    key_ids: the same for the keys that the new tokens may see, their own among them, and -1 for
      slots before the first token, by attention site: [B, keys].
  """

  length: Array
  positions: Array
  segment_ids: Array
  key_ids: dict[str, Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeCache:
  """The keys and values of all layers, and what else decoding needs of earlier tokens.

  A row is one document, with padding before it or after it. The attention stores 2 K C values per
  token and layer, whatever its windows are; `short_swa` stores 2 D values for each of the last
  window - 1 tokens.

  Attributes:
    past: the keys and values by attention site, [L, B, slots, K, C].
    segment_ids: 1 for a token, 0 for padding and for slots without a token yet [B, S].
    length: the number of slots that are filled, a scalar; of an empty cache a NumPy array, so that
      where it was made it is known to be 0 while a program is traced.
    combinator: what the combinator keeps, see `Combinator.decode_cache`.
  """

  past: dict[str, KeyValues]
  segment_ids: Array
  length: Array | np.ndarray
  combinator: PyTree

  @classmethod
  def empty(
    cls, config: DecoderConfig, combinator: Combinator, batch_size: int, size: int
  ) -> "DecodeCache":
    """Returns the cache before the first token.

    Args:
      config: the decoder.
      combinator: its residual system.
      batch_size: the number of rows B.
      size: the most tokens of a row S, padding included; 1..max_positions.

    Raises:
      ValueError: the size is out of range.
    """
    if not 1 <= size <= config.max_positions:
      raise ValueError(
        f"size={size} is out of range; allowed: 1..{config.max_positions} (config.data.seq_len)"
      )
    heads = {config.attention_site: (size, config.num_kv_heads, config.head_dim)}
    if config.short_swa.window:
      width = config.d_model // config.short_swa_heads
      earlier = min(config.short_swa.window - 1, size)
      heads["short_swa"] = (earlier, config.short_swa_heads, width)
    rows = config.num_layers, batch_size
    return cls(
      {site: KeyValues.empty((*rows, *shape), config.dtype) for site, shape in heads.items()},
      jnp.zeros((batch_size, size), jnp.int32),
      np.zeros((), np.int32),
      combinator.decode_cache(batch_size, config.dtype),
    )

  def place(self, segment_ids: Array) -> FirstTokens | TokensInCache:
    """Returns where T new tokens stand.

    Args:
      segment_ids: 1 for a token, 0 for padding [B, T]. The first token of a row that is no padding
        has position 0.
    """
    count = segment_ids.shape[1]
    real = jnp.cumsum(segment_ids > 0, axis=1)
    if isinstance(self.length, np.ndarray) and self.length == 0:
      return FirstTokens(jnp.maximum(real - 1, 0), segment_ids)
    earlier = jnp.sum(self.segment_ids > 0, axis=1, keepdims=True)
    ids = {}
    for site, past in self.past.items():
      ids[site] = self._segment_ids_with(segment_ids)
      if site == "short_swa":  # its keys are the last `size` ones and the new ones
        size = past.keys.shape[-3]
        slots = self.length - size + jnp.arange(size + count)
        ids[site] = jnp.where(slots < 0, -1, jnp.take(ids[site], slots, axis=1, mode="clip"))
    positions = jnp.maximum(earlier + real - 1, 0)
    return TokensInCache(jnp.asarray(self.length), positions, segment_ids, ids)

  def advance(
    self, segment_ids: Array, new: dict[str, KeyValues], combinator: PyTree
  ) -> "DecodeCache":
    """Returns the cache after T tokens.

    Args:
      segment_ids: 1 for a token, 0 for padding [B, T].
      new: the keys and values of these tokens, by attention site: [L, B, T, K, C].
      combinator: what the combinator keeps, see `Combinator.next_cache`.
    """
    first = jnp.asarray(self.length)
    past = {
      site: old.pushed(new[site]) if site == "short_swa" else old.stored(new[site], first)
      for site, old in self.past.items()
    }
    segments = self._segment_ids_with(segment_ids)
    return DecodeCache(past, segments, first + segment_ids.shape[1], combinator)

  def _segment_ids_with(self, segment_ids: Array) -> Array:
    """Returns the segments of all slots [B, S] with those of T new tokens [B, T]."""
    new = segment_ids.astype(self.segment_ids.dtype)
    return lax.dynamic_update_slice_in_dim(self.segment_ids, new, self.length, axis=1)
