"""What attention does with its scores, and which keys a query sees."""

import dataclasses

import jax.numpy as jnp

from resjax.base import Array


@dataclasses.dataclass(frozen=True)
class Scores:
  """The scale and the soft cap in softmax(cap(scale · q kᵀ)).

  Attributes:
    scale: the factor on q kᵀ; None: 1 / √C.
    softcap: c > 0: cap(s) = c · tanh(s / c) (Gemma 2, arXiv 2408.00118, §2); 0: cap(s) = s.
  """

  scale: float | None = None
  softcap: float = 0.0

  def scale_for(self, head_dim: int) -> float:
    """Returns the scale for heads of width `head_dim`."""
    return head_dim**-0.5 if self.scale is None else self.scale


@dataclasses.dataclass(frozen=True)
class Window:
  """A window of `size` tokens: token t attends to tokens t - size + 1..t; size 0: to all of 0..t.

  Layers of a scan are one program, so a layer chooses its window by an index that may be traced.

  Attributes:
    sizes: the different sizes that the layers have, in tokens.
    index: which of them this layer has, an integer; None: the only one.
  """

  sizes: tuple[int, ...] = (0,)
  index: Array | None = None

  @property
  def size(self) -> Array | int:
    """The size of this layer's window, in tokens."""
    return self.sizes[0] if self.index is None else jnp.asarray(self.sizes)[self.index]


PLAIN = Scores()
ALL_EARLIER = Window()
