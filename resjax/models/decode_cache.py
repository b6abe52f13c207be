"""What the tokens of a row leave for those that follow, in decoding."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Int

from resjax.base import Array, PyTree
from resjax.combinators import Combinator
from resjax.models.config import DecoderConfig
from resjax.nn import KeyValues


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
  """The positions of T new tokens that follow the tokens of a cache.

  Attributes:
    length: the number of slots that earlier tokens fill, a scalar.
    positions: the position of each new token in its row [B, T], padding not counted.
    segment_ids: 1 for a token, 0 for padding [B, T].
    keys: the same two of the keys that the new tokens may see, their own among them, by attention
      site: segments (-1 for slots before the first token) and positions, [B, keys] each.
  """

  length: Array
  positions: Array
  segment_ids: Array
  keys: dict[str, tuple[Array, Array]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeCache:
  """The keys and values of all layers, and what else decoding needs of earlier tokens.

  A row is one document. Padding among its tokens takes slots and is seen by none of them; what
  counts tokens, as windows do, counts it nowhere. The attention stores 2 K C values per slot and
  layer, whatever its windows are; `short_swa` stores 2 D values for each of the last window - 1
  tokens.

  Attributes:
    past: the keys and values by attention site, [L, B, slots, K, C].
    segment_ids: 1 for a token, 0 for padding and for slots without a token yet [B, S].
    length: the number of slots that are filled, a scalar; of an empty cache a NumPy array, so that
      where it was made it is known to be 0 while a program is traced.
    combinator: what the combinator keeps, see `Combinator.decode_cache`.
    tokens: the tokens themselves [B, S], where rows that get long turn all their keys anew
      (`longrope`); else None.
  """

  past: dict[str, KeyValues]
  segment_ids: Array
  length: Array | np.ndarray
  combinator: PyTree
  tokens: Array | None = None

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
      jnp.zeros((batch_size, size), jnp.int32) if config.short_lengths else None,
    )

  @property
  def is_empty(self) -> bool:
    """Whether it is known to have no tokens yet."""
    return isinstance(self.length, np.ndarray) and self.length == 0

  @property
  def size(self) -> int:
    """The number of slots S."""
    return self.segment_ids.shape[1]

  def counts(self) -> Int[Array, " B"]:
    """Returns the number of tokens of each row, padding not counted."""
    return jnp.sum(self.segment_ids > 0, axis=1)

  def check_room(self, count: int) -> None:
    """Raises ValueError if it is known that T more tokens do not fit."""
    filled = 0 if isinstance(self.length, jax.core.Tracer) else int(self.length)
    if filled + count > self.size:
      raise ValueError(
        f"{count} tokens, padding included, do not fit into a cache of {self.size} slots of which "
        f"{filled} are filled; make it larger: empty_cache(batch_size, size)"
      )

  def place(self, segment_ids: Int[Array, "B T"]) -> FirstTokens | TokensInCache:
    """Returns where T new tokens stand.

    Args:
      segment_ids: 1 for a token, 0 for padding. The first token of a row that is no padding has
        position 0.
    """
    real = jnp.cumsum(segment_ids > 0, axis=1)
    if self.is_empty:
      return FirstTokens(jnp.maximum(real - 1, 0), segment_ids)
    earlier = self.counts()[:, None]
    positions = jnp.maximum(earlier + real - 1, 0)
    ids = self._with(self.segment_ids, segment_ids)
    keys = {}
    for site, past in self.past.items():
      keys[site] = ids, jnp.maximum(jnp.cumsum(ids > 0, axis=1) - 1, 0)
      if site == "short_swa":  # its keys are the last `size` tokens and the new ones
        size = past.keys.shape[-3]
        last = earlier - size + jnp.arange(size)[None]
        window = jnp.where(last < 0, -1, 1)
        ids_of_last = jnp.concatenate([window, segment_ids], axis=1)
        keys[site] = ids_of_last, jnp.concatenate([last, positions], axis=1)
    return TokensInCache(jnp.asarray(self.length), positions, segment_ids, keys)

  def advance(
    self,
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    new: dict[str, KeyValues],
    combinator: PyTree,
  ) -> "DecodeCache":
    """Returns the cache after T tokens.

    Args:
      tokens: the tokens.
      segment_ids: 1 for a token, 0 for padding, which comes last in its row.
      new: the keys and values of these tokens, by attention site: [L, B, T, K, C].
      combinator: the combinator's cache, see `Combinator.next_cache`.
    """
    first, counts = jnp.asarray(self.length), jnp.sum(segment_ids > 0, axis=1)
    past = {
      site: old.pushed(new[site], counts) if site == "short_swa" else old.stored(new[site], first)
      for site, old in self.past.items()
    }
    ids, length = self._with(self.segment_ids, segment_ids), first + segment_ids.shape[1]
    kept = None if self.tokens is None else self._with(self.tokens, tokens)
    return DecodeCache(past, ids, length, combinator, kept)

  def rows(
    self, tokens: Int[Array, "B T"], segment_ids: Int[Array, "B T"]
  ) -> tuple[Int[Array, "B S"], Int[Array, "B S"]]:
    """Returns the ids of all tokens, with T new ones, and which slots hold a token.

    Only a cache that stores token ids has them.
    """
    assert self.tokens is not None  # `Decoder.decode` asks where `short_lengths` are not empty
    return self._with(self.tokens, tokens), self._with(self.segment_ids, segment_ids)

  def _with(self, slots: Array, new: Array) -> Array:
    """Returns the entries of all slots [B, S], with T new ones [B, T] stored."""
    return lax.dynamic_update_slice_in_dim(slots, new.astype(slots.dtype), self.length, axis=1)
