"""A combinator that is checked, with the small network around it."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from resjax.base import PyTree
from resjax.combinators import Combinator
from resjax.testing import toy


@dataclasses.dataclass(frozen=True, eq=False)  # hashed by identity
class Subject:
  """A combinator that is checked.

  Attributes:
    make: make(num_layers=, d_model=, sites=, layout=, rngs=) returns a fresh one.
    num_layers: how many layers it is checked with.
    dead: parameter -> index prefixes where the gradient is exactly zero, whatever the values are;
      everywhere else no element may be zero.
    value_and_gradients: `toy.jitted`, or `toy.value_and_gradients` where one program of all layers
      takes long to compile.
  """

  make: Callable[..., Combinator]
  num_layers: int = 3
  dead: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
  value_and_gradients: Callable[..., Any] = toy.jitted

  def fresh(self, **changes: Any) -> Combinator:
    """Returns a new one with its initial values."""
    sizes = {"num_layers": self.num_layers, "d_model": toy.D, "sites": toy.SITES}
    made = self.make(**{**sizes, "rngs": nnx.Rngs(0), **changes})
    made.scaled_init = True  # as far as any gain can be right in a toy
    return made

  def abstract(self, **changes: Any) -> Combinator:
    """Returns one with shapes for parameters."""
    made: Combinator = nnx.eval_shape(lambda: self.fresh(**changes))
    return made

  def moved(self) -> Combinator:
    """Returns one with random parameters in float32."""
    return toy.moved(self.fresh())

  def inputs(self, dtype: Any = np.float32) -> tuple[PyTree, jax.Array]:
    """Returns the parameters of the branches, and the embeddings."""
    return toy.layers(self.num_layers, dtype=dtype), jax.device_put(toy.embeddings(dtype))

  def network(self, made: Combinator | None = None) -> tuple[Combinator, PyTree, jax.Array]:
    """Returns a combinator, `moved` by default, with the branches and embeddings, in float64."""
    graphdef, state = nnx.split(made or self.moved())  # drawn outside: x64 draws others
    with jax.enable_x64(True):
      state = jax.device_put(jax.tree.map(np.float64, state))
      return nnx.merge(graphdef, state), *self.inputs(np.float64)

  @functools.cached_property
  def expected(self) -> PyTree:
    """Value and gradients of the loop by hand."""
    return self.by_hand(*self.network())

  def by_hand(self, *network: Any) -> PyTree:
    """Returns value and gradients of the loop by hand for a `network`."""
    with jax.enable_x64(True):
      return jax.tree.map(np.asarray, self.value_and_gradients(toy.by_hand, *network))
