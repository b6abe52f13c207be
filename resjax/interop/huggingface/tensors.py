"""How the tensors of a file and the parameters of a decoder correspond."""

import dataclasses
from collections.abc import Callable

import numpy as np

from resjax.models.config import DecoderConfig

Index = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class Part:
  """A tensor that holds several parameters side by side along their last axis.

  Attributes:
    index: which of them.
    count: how many there are.
    per_head: whether they alternate from head to head.
  """

  index: int
  count: int
  per_head: bool = False


@dataclasses.dataclass(frozen=True)
class Tensor:
  """One parameter and where it lies in a file.

  Attributes:
    theirs: name of the tensor; {} stands for the layer.
    ours: path of the parameter; under `layers` it is stacked.
    transposed: whether their last axis is our first.
    offset: ours is theirs plus this.
    part: where theirs holds several of ours; None: it is ours alone.
  """

  theirs: str
  ours: str
  transposed: bool = False
  offset: float = 0.0
  part: Part | None = None

  @property
  def stacked(self) -> bool:
    """Whether each layer has a tensor of its own."""
    return "{}" in self.theirs

  def their_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of the tensor for a parameter of one layer of this shape."""
    *rest, last = shape
    last *= self.part.count if self.part else 1
    return (last, *rest) if self.transposed else (*rest, last)

  def read(
    self,
    slice_of: Callable[[Index], np.ndarray],
    shape: tuple[int, ...],
    index: Index,
    config: DecoderConfig,
  ) -> np.ndarray:
    """Returns a slice of the parameter of one layer, `offset` not yet added.

    Args:
      slice_of: reads a slice of the tensor.
      shape: of the parameter.
      index: of the slice.
      config: of the decoder.
    """
    *rest, last = (slice(*s.indices(n)[:2]) for s, n in zip(index, shape, strict=True))
    if self.part is None:
      return self._oriented(slice_of, rest, last)
    width, part = self._width(shape, config), self.part
    first, end = last.start // width, -(-last.stop // width)  # heads
    if end - first == 1:
      start = (first * part.count + part.index) * width - first * width
      return self._oriented(slice_of, rest, slice(start + last.start, start + last.stop))
    heads = slice(first * part.count * width, end * part.count * width)
    found = self._oriented(slice_of, rest, heads)
    found = found.reshape(*found.shape[:-1], end - first, part.count, width)[..., part.index, :]
    found = found.reshape(*found.shape[:-2], -1)
    return found[..., last.start - first * width : last.stop - first * width]

  def write(self, target: np.ndarray, value: np.ndarray, config: DecoderConfig) -> None:
    """Writes the parameter of one layer into its tensor, or into its part of it."""
    value = value - np.float32(self.offset) if self.offset else value
    target = np.moveaxis(target, 0, -1) if self.transposed else target
    if self.part is None:
      target[...] = value
      return
    width, part = self._width(value.shape, config), self.part
    for head in range(value.shape[-1] // width):
      start = (head * part.count + part.index) * width
      target[..., start : start + width] = value[..., head * width : (head + 1) * width]

  def _oriented(self, slice_of, rest: list[slice], last: slice) -> np.ndarray:
    if self.transposed:
      return np.moveaxis(slice_of((last, *rest)), 0, -1)
    return slice_of((*rest, last))

  def _width(self, shape: tuple[int, ...], config: DecoderConfig) -> int:
    return config.head_dim if self.part.per_head else shape[-1]
