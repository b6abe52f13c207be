"""What a gated read of residual streams takes. R is the number of streams, r the rank of gates."""

import dataclasses
from typing import Any, NamedTuple

import jax

from resjax.sharding import Layout

# An array, or what stands for it elsewhere: its shape, its tiles, the position of its token axes.
Field = Any


class Operands(NamedTuple):
  """The arrays of a read; token axes are written [...].

  Attributes:
    streams: H [R, ..., D].
    gain: γ [R, D], or [1, D] that all streams share.
    down: W_down [R, D, r].
    up: W_up [R, r, D].
    inject: W_inject [R, D, R], or None.
  """

  streams: Field
  gain: Field
  down: Field
  up: Field
  inject: Field

  @property
  def like(self) -> jax.ShapeDtypeStruct:
    """The shape [..., D] and dtype of a stream."""
    return jax.ShapeDtypeStruct(self.streams.shape[1:], self.streams.dtype)


@dataclasses.dataclass(frozen=True)
class Read:
  """The static options of a read.

  Attributes:
    eps: number added to the mean square of a stream in its norm.
    implementation: name of the backend.
    layout: mesh, and how token axes are split over it.
    interpret: False, or what the argument `interpret` of a Pallas call takes.
  """

  eps: float
  implementation: str
  layout: Layout
  interpret: Any = False
