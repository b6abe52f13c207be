"""What the short convolutions of `DeepDelta` keep of earlier tokens in decoding with a cache."""

import dataclasses

import jax
from jax import lax

from resjax.combinators.base import Layer
from resjax.combinators.short_conv import after
from resjax.typing import Array


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

  def with_embeddings(self, x: Array) -> "DeltaCache":
    """Returns the cache after new embeddings [B, T, D]."""
    if self.embeddings is None:
      return self
    return dataclasses.replace(self, embeddings=_last(self.embeddings, x))

  def read(self, sublayer: Layer) -> Array | None:
    """Returns X of the past tokens as a sublayer read it [R, B, P, D]; None if not kept."""
    if self.reads is None:
      return None
    return lax.dynamic_index_in_dim(self.reads, sublayer, keepdims=False)

  def with_read(self, sublayer: Layer, x: Array) -> "DeltaCache":
    """Returns the cache after a sublayer read the new tokens' X [R, B, T, D]."""
    if self.reads is None:
      return self
    last = _last(lax.dynamic_index_in_dim(self.reads, sublayer, keepdims=False), x)
    reads = lax.dynamic_update_index_in_dim(self.reads, last, sublayer, 0)
    return dataclasses.replace(self, reads=reads)

  def closed(self, segment_ids: Array, x: Array) -> "DeltaCache":
    """Returns the cache after the last layer.

    Args:
      segment_ids: of past and new tokens [B, P + T].
      x: the new tokens' X as the output reads it [R, B, T, D].
    """
    final = None if self.final is None else _last(self.final, x)
    past = self.segment_ids.shape[1]
    return dataclasses.replace(self, segment_ids=segment_ids[:, -past:], final=final)


def _last(past: Array, x: Array) -> Array:
  """Returns the last P of past [..., P, D] and new tokens [..., T, D]."""
  return after(past, x)[..., -past.shape[-2] :, :]
