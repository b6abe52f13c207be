"""What the short convolutions of `DeepDelta` keep of earlier tokens in decoding with a cache."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array
from resjax.combinators.base import Layer
from resjax.combinators.short_conv import latest


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeltaCache:
  """What the tokens that follow need of the last P = kernel_size − 1 tokens.

  Attributes:
    segment_ids: [B, P]; 0 where there was no token.
    embeddings: [B, P, D]; None without embedding expansion.
    reads: X as each sublayer read it [L · sites, R, B, P, D]; None without token compressor.
    final: X as the output read it [R, B, P, D]; None without token compressor.
  """

  segment_ids: Array
  embeddings: Array | None = None
  reads: Array | None = None
  final: Array | None = None

  def with_embeddings(self, x: Array, counts: Array) -> "DeltaCache":
    """Returns the cache after new embeddings [B, T, D], `counts` of which are tokens [B]."""
    if self.embeddings is None:
      return self
    return dataclasses.replace(self, embeddings=latest(self.embeddings, x, counts))

  def read(self, sublayer: Layer) -> Array | None:
    """Returns X of the past tokens as a sublayer read it [R, B, P, D]; None if not kept."""
    if self.reads is None:
      return None
    return lax.dynamic_index_in_dim(self.reads, sublayer, keepdims=False)

  def with_read(self, sublayer: Layer, x: Array, counts: Array) -> "DeltaCache":
    """Returns the cache after a sublayer read the new tokens' X [R, B, T, D]."""
    if self.reads is None:
      return self
    past = lax.dynamic_index_in_dim(self.reads, sublayer, keepdims=False)
    reads = lax.dynamic_update_index_in_dim(self.reads, latest(past, x, counts), sublayer, 0)
    return dataclasses.replace(self, reads=reads)

  def closed(self, segment_ids: Array, x: Array) -> "DeltaCache":
    """Returns the cache after the last layer.

    Args:
      segment_ids: of past and new tokens [B, P + T].
      x: the new tokens' X as the output reads it [R, B, T, D].
    """
    counts = self.counts(segment_ids)
    final = None if self.final is None else latest(self.final, x, counts)
    new = segment_ids[:, self.segment_ids.shape[1] :, None]
    of_last = latest(self.segment_ids[..., None], new, counts)[..., 0]
    return dataclasses.replace(self, segment_ids=of_last, final=final)

  def counts(self, segment_ids: Array) -> Array:
    """Returns how many of the T new tokens are no padding [B], of segments [B, P + T]."""
    return jnp.sum(segment_ids[:, self.segment_ids.shape[1] :] > 0, axis=1)
