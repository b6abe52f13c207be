"""What a gated read of residual streams takes. R is the number of streams, r the rank of gates."""

import dataclasses
from typing import NamedTuple

import jax

from resjax.kernels.operation import Field, Options


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
class Read(Options):
  """The static options of a read.

  Attributes:
    eps: number added to the mean square of a stream in its norm.
  """

  eps: float
