"""Decoding of rows that have padding in any place, or get long for a rotation."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Float, Int

from resjax.base import Array
from resjax.models.decode_cache import DecodeCache

Hidden = tuple[Float[Array, "B T D"], DecodeCache]


@dataclasses.dataclass(frozen=True)
class Decoding:
  """What `Decoder.decode` does besides running its layers.

  Attributes:
    run: run(tokens [B, T], cache, segment ids [B, T]) returns the hidden states [B, T, D] of
      tokens whose padding comes last, and the cache with them, where all earlier tokens stay what
      they were.
    empty_cache: empty_cache(B, size) returns a cache without tokens.
    short_lengths: the lengths up to which a document is short for a rotation.
  """

  run: Callable[[Array, DecodeCache, Array], Hidden]
  empty_cache: Callable[[int, int], DecodeCache]
  short_lengths: tuple[int, ...]

  def decode(
    self, tokens: Int[Array, "B T"], cache: DecodeCache, segment_ids: Int[Array, "B T"] | None
  ) -> Hidden:
    """See `Decoder.decode`."""
    cache.check_room(tokens.shape[1])
    if segment_ids is None or tokens.shape[1] == 1:
      segment_ids = jnp.ones_like(tokens) if segment_ids is None else segment_ids
      return self._run_or_again(tokens, cache, segment_ids)
    # Padding goes behind the tokens of its row, where it is in no token's way.
    order = jnp.argsort(segment_ids <= 0, axis=1, stable=True)
    tokens, segment_ids = (jnp.take_along_axis(a, order, axis=1) for a in (tokens, segment_ids))
    hidden, cache = self._run_or_again(tokens, cache, segment_ids)
    return jnp.take_along_axis(hidden, jnp.argsort(order, axis=1)[..., None], axis=1), cache

  def _run_or_again(self, tokens: Array, cache: DecodeCache, segment_ids: Array) -> Hidden:
    """Does what `decode` does for rows whose padding comes last."""
    count = tokens.shape[1]

    def on() -> Hidden:
      return self.run(tokens, cache, segment_ids)

    def again() -> Hidden:
      # In a long row the hidden states of earlier tokens are others too, so that no key stays.
      rows, ids = cache.rows(tokens, segment_ids)
      hidden, new = self.decode(rows, self.empty_cache(len(rows), cache.size), ids)
      hidden = lax.dynamic_slice_in_dim(hidden, cache.length, count, axis=1)
      return hidden, dataclasses.replace(new, length=jnp.asarray(cache.length) + count)

    borders = [length for length in self.short_lengths if length < cache.size]
    if cache.is_empty or not borders:
      return on()
    earlier = cache.counts()
    after = earlier + jnp.sum(segment_ids > 0, axis=1)
    crosses = [(earlier > 0) & (earlier <= border) & (border < after) for border in borders]
    return lax.cond(jnp.any(jnp.stack(crosses)), again, on)
