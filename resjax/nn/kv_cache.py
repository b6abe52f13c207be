"""Keys and values of earlier tokens, for decoding."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from resjax.typing import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyValues:
  """Keys and values of S tokens of one attention, or of those of L layers.

  A full attention keeps S slots, written from the first on. One with a window keeps the last S
  tokens in order, so that a new one pushes the oldest out.

  Attributes:
    keys: [..., B, S, K, C], rotated and normalised as the scores need them.
    values: [..., B, S, K, C].
  """

  keys: Array
  values: Array

  @classmethod
  def empty(cls, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> "KeyValues":
    """Returns zeros of shape [..., B, S, K, C]."""
    return cls(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

  def stored(self, new: "KeyValues", slot: Array | int) -> "KeyValues":
    """Returns S slots, those from `slot` on with the T tokens of `new`."""

    def store(old, new):
      return lax.dynamic_update_slice_in_dim(old, new, slot, old.ndim - 3)

    return jax.tree.map(store, self, new)

  def joined(self, new: "KeyValues") -> "KeyValues":
    """Returns S + T tokens, those of `new` last."""
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=-3), self, new)

  def pushed(self, new: "KeyValues") -> "KeyValues":
    """Returns the last S tokens of `joined`."""
    count = new.keys.shape[-3]
    return jax.tree.map(lambda a: a[..., count:, :, :], self.joined(new))
