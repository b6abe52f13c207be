"""The norm in front of a branch, in a form that a combinator may fuse into its read."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeGuard

import jax
import jax.numpy as jnp

from resjax.base import Array, aligned, wide_dtype


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PreNorm:
  """An RMS norm of the last axis: x / sqrt(mean(x²) + eps) ⊙ scale, in float32 or wider.

  Attributes:
    scale: the gain [D].
    eps: the number that is added to the mean square.
  """

  scale: Array
  eps: float = dataclasses.field(metadata={"static": True})

  @jax.named_scope("norm")
  def __call__(self, x: Array) -> Array:
    """Returns the normalised x [..., D] in its dtype."""
    wide = x.astype(wide_dtype(x))
    inverse_rms = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
    return (wide * inverse_rms * aligned(self.scale, x)).astype(x.dtype)


# By view, what normalises it: a `PreNorm`, or any function of an array [..., D].
Norms = Mapping[str, Callable[[Array], Array]]


def are_pre_norms(norms: Norms) -> TypeGuard[Mapping[str, PreNorm]]:
  """Returns whether every view has a `PreNorm`, which a read may fuse."""
  return all(isinstance(norm, PreNorm) for norm in norms.values())
