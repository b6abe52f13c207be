"""How the tensors of a file correspond to the parameters of a decoder."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, Self

import numpy as np

from resjax.models import DecoderConfig

Index = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class Part:
  """The place of a parameter in a tensor that holds several, side by side along their last axis.

  Attributes:
    index: the position of the parameter within the tensor.
    widths: for each parameter of the tensor, its number of adjacent values before the next one
      follows: all of its values, or one head's if the parameters alternate between heads.
  """

  index: int
  widths: Callable[[DecoderConfig], tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Tensor:
  """One parameter of a decoder, and the tensor of a file that holds it.

  Attributes:
    name: the name of the tensor; {} stands for the number of the layer, and a second {} for that of
      an expert.
    path: the path of the parameter; under `layers` it is stacked over the layers that have it, and
      then over experts.
    transposed: whether the last two axes of the parameter are exchanged in the tensor.
    offset: the number to add to the tensor to get the parameter.
    part: the place in a tensor that holds several parameters; None if it holds this one alone.
  """

  name: str
  path: str
  transposed: bool = False
  offset: float = 0.0
  part: Part | None = None

  @property
  def stacked(self) -> bool:
    """Whether each layer has a tensor of its own."""
    return "{}" in self.name

  def names(self, config: DecoderConfig) -> np.ndarray:
    """Returns the names of the tensors that hold the parameter, along its leading axes.

    They are one name [], one for each layer that has the parameter [L], or one for each of their
    experts [L, E].
    """
    if not self.stacked:
      return np.array(self.name, object)
    own = {"layers/mlp/": config.dense_layers, "layers/moe/": config.routed_layers}
    found = (layers for place, layers in own.items() if self.path.startswith(place))
    layers = next(found, range(config.num_layers))
    if self.name.count("{}") == 1:
      return np.array([self.name.format(layer) for layer in layers], object)
    experts = range(config.moe.num_experts)
    return np.array([[self.name.format(layer, e) for e in experts] for layer in layers], object)

  def stored_shape(self, shape: tuple[int, ...], config: DecoderConfig) -> tuple[int, ...]:
    """Returns the shape of a tensor, given that of its part of the parameter."""
    if not shape:
      return shape
    *rest, last = shape
    if self.part:
      widths = self.part.widths(config)
      last = last // widths[self.part.index] * sum(widths)
    return (*rest[:-1], last, rest[-1]) if self.transposed else (*rest, last)

  def read(
    self,
    slice_of: Callable[[Index], np.ndarray],
    shape: tuple[int, ...],
    index: Index,
    config: DecoderConfig,
  ) -> np.ndarray:
    """Returns the slice `index` of a tensor's part of the parameter, without `offset`.

    The part has this shape, and `slice_of` reads slices of the tensor.
    """
    if not shape:
      return slice_of(())
    *rest, last = (slice(*s.indices(n)[:2]) for s, n in zip(index, shape, strict=True))
    if self.part is None:
      return self._oriented(slice_of, rest, last)
    before, width, total = self._place(self.part, config)
    first, end = last.start // width, -(-last.stop // width)  # These are numbers of heads.
    if end - first == 1:
      start = first * total + before - first * width
      return self._oriented(slice_of, rest, slice(start + last.start, start + last.stop))
    found = self._oriented(slice_of, rest, slice(first * total, end * total))
    found = found.reshape(*found.shape[:-1], end - first, total)[..., before : before + width]
    found = found.reshape(*found.shape[:-2], -1)
    return found[..., last.start - first * width : last.stop - first * width]

  def write(self, target: np.ndarray, value: np.ndarray, config: DecoderConfig) -> None:
    """Writes what a tensor has of the parameter into `target`, or into its place there."""
    value = value - np.float32(self.offset) if self.offset else value
    target = target.swapaxes(-1, -2) if self.transposed else target
    if self.part is None:
      target[...] = value
      return
    before, width, total = self._place(self.part, config)
    for head in range(value.shape[-1] // width):
      start = head * total + before
      target[..., start : start + width] = value[..., head * width : (head + 1) * width]

  def _oriented(
    self, slice_of: Callable[[Index], np.ndarray], rest: list[slice], last: slice
  ) -> np.ndarray:
    """Reads a slice of the tensor, with its axes in the order of the parameter."""
    if self.transposed:
      return slice_of((*rest[:-1], last, rest[-1])).swapaxes(-1, -2)
    return slice_of((*rest, last))

  def _place(self, part: Part, config: DecoderConfig) -> tuple[int, int, int]:
    """Returns the offset of the parameter in a period, its number of values, and the period.

    A period has one group of adjacent values of every parameter of the tensor.
    """
    widths = part.widths(config)
    return sum(widths[: part.index]), widths[part.index], sum(widths)


class TensorNames(Protocol):
  """The names of the tensors of some models, see `Family`."""

  @property
  def tensors(self) -> tuple[Tensor, ...]:
    """The tensors that a model may have, including its embeddings."""
    ...

  @property
  def prefix(self) -> str:
    """The beginning of most names of tensors, which some files leave out."""
    ...

  @property
  def nested(self) -> tuple[str, str] | None:
    """What files are called that hold such a model beside one of images; None: there are none."""
    ...

  @property
  def buffers(self) -> tuple[str, ...]:
    """The endings of names of tensors that are not parameters."""
    ...

  def as_stored(self, stored: Collection[str]) -> Self:
    """Returns the names of tensors that files have, which hold tensors with these names."""
    ...

  def tensors_of(self, config: DecoderConfig, parameters: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Returns the tensors of a decoder, given its parameters by path."""
    ...
