"""The keys and values of earlier tokens, for decoding."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyValues:
  """The keys and values of S tokens in one attention, or in the attentions of L layers.

  A full attention has S slots, which are filled from the first on. An attention with a short window
  keeps the last S tokens in their order, so that a new one pushes the oldest out.

  Attributes:
    keys: the keys [..., B, S, K, C], normalised and rotated as the scores need them.
    values: the values [..., B, S, K, C].
  """

  keys: Array
  values: Array

  @classmethod
  def empty(cls, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> "KeyValues":
    """Returns keys and values that are zeros of a shape [..., B, S, K, C]."""
    return cls(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

  def stored(self, new: "KeyValues", slot: Array | int) -> "KeyValues":
    """Returns these S slots with the T tokens of `new` in those from `slot` on."""

    def store(old: Array, new: Array) -> Array:
      return lax.dynamic_update_slice_in_dim(old, new, slot, old.ndim - 3)

    return jax.tree.map(store, self, new)

  def joined(self, new: "KeyValues") -> "KeyValues":
    """Returns keys and values of S + T tokens, the T of `new` behind these S."""
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=-3), self, new)

  def pushed(self, new: "KeyValues", counts: Array) -> "KeyValues":
    """Appends new tokens and keeps the last S of each row, leaving out the padding of `new`.

    Args:
      new: T tokens; in each row padding comes last.
      counts: the number of new tokens in each row that are not padding [B].
    """
    slots = counts[:, None] + jnp.arange(self.keys.shape[-3])[None]

    def last(both: Array) -> Array:
      leading = (1,) * (both.ndim - 4)
      return jnp.take_along_axis(both, slots.reshape(*leading, *slots.shape, 1, 1), axis=-3)

    return jax.tree.map(last, self.joined(new))
