"""Depth sources: the arrays that one depth read attends over."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from resjax.typing import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sources:
  """The sources of a depth read, in order: `bank[:num_valid]`, then `recent`.

  A Python loop over layers keeps every source in `recent` and has no bank. A scan over layers
  needs a fixed shape: completed sources lie in `bank`, whose slots from `num_valid` on hold
  nothing, and `recent` has only what the running layer appended.

  Attributes:
    recent: arrays [..., D].
    bank: array [N_max, ..., D] or None.
    num_valid: number of slots of `bank` that hold a source; an int or a traced scalar.
  """

  recent: tuple[Array, ...] = ()
  bank: Array | None = None
  num_valid: Array | int = 0

  def append(self, source: Array) -> "Sources":
    """Adds one source [..., D] behind all others."""
    return dataclasses.replace(self, recent=(*self.recent, source))


def make_bank(sources: tuple[Array, ...], size: int) -> Array:
  """Returns a bank [size, ..., D] whose first slots are `sources`, the others zero."""
  bank = jnp.zeros((size, *sources[0].shape), sources[0].dtype)
  return store(bank, 0, sources)


def store(bank: Array, slot: Array | int, sources: tuple[Array, ...]) -> Array:
  """Returns `bank` [N, ..., D] with `sources` written to the slots from `slot` on."""
  for offset, source in enumerate(sources):
    bank = lax.dynamic_update_index_in_dim(bank, source, slot + offset, 0)
  return bank
