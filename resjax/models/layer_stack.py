"""The layer function that the loops over layers run, and its arguments."""

from collections.abc import Callable
from typing import NamedTuple

from resjax.base import PyTree


class Carried(NamedTuple):
  """The carry from one layer to the next.

  Attributes:
    state: the depth state of the combinator.
    handed: the arrays of a `resjax.models.depth.Relay`; None without one.
  """

  state: PyTree
  handed: PyTree = None


# layer(index, carried, shared, row of the stack, context) -> the next carried, and what is found.
LayerStep = Callable[..., tuple[Carried, PyTree]]


class Stack(NamedTuple):
  """What differs from layer to layer: arrays with a leading axis L, or one layer's row of them.

  Attributes:
    layers: the parameters of the layers.
    combinator: the combinator's `per_layer` parameters.
  """

  layers: PyTree
  combinator: PyTree
