"""What the loops over layers run, and what they hand to each layer."""

from collections.abc import Callable
from typing import Any, NamedTuple

from resjax.typing import PyTree

# layer(index, state, shared, row of the stack, context) -> the next state, and what is found.
LayerStep = Callable[..., tuple[Any, PyTree]]


class Stack(NamedTuple):
  """What differs from layer to layer: arrays with a leading axis L, or one layer's row of them.

  Attributes:
    layers: the parameters of the layers.
    combinator: the combinator's `per_layer` parameters.
  """

  layers: PyTree
  combinator: PyTree
