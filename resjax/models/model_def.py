"""A decoder apart from its parameters, and the parameters apart from it."""

from collections.abc import Callable, Collection
from typing import Any

import jax
from flax import nnx

from resjax.base import Array, PyTree
from resjax.base.sharding import Layout
from resjax.models.config import DecoderConfig
from resjax.models.decoder import Decoder
from resjax.models.parameters import Parameter, failures, refuse


class ModelDef:
  """A decoder without its parameters, which makes a `Decoder` of a nested dict of arrays.

  Args:
    config: the sizes and choices of the decoder.
    layout: says which devices hold which part of an array.

  Attributes:
    abstract: the parameters, as a nested dict of `ShapeDtypeStruct` with shardings.
    combinator: the combinator of the decoder, without arrays.

  Raises:
    ValueError: sizes of parameters do not divide over their devices.
  """

  def __init__(self, config: DecoderConfig, layout: Layout):
    self.config, self.layout = config, layout
    model = nnx.eval_shape(lambda: Decoder(config, layout=layout, rngs=nnx.Rngs(0)))
    self._graphdef, self._template = nnx.split(model)
    self.combinator = model.combinator
    flat = nnx.to_flat_state(self._template)
    parameters = {path: Parameter.of(variable) for path, variable in flat}
    named = {"/".join(map(str, path)): found for path, found in parameters.items()}
    refuse(failures(named, layout))

    def abstract(path: tuple, variable: nnx.Variable) -> jax.ShapeDtypeStruct:
      split = layout.sharding(*parameters[path].axes)
      return jax.ShapeDtypeStruct(variable.shape, variable.dtype, sharding=split)

    self.abstract: dict[str, Any] = nnx.traversals.unflatten_mapping(
      {path: abstract(path, variable) for path, variable in flat}
    )

  def leaves(self) -> list[jax.ShapeDtypeStruct]:
    """Returns the abstract parameters in the order of their paths."""
    return jax.tree.leaves(self.abstract)

  @property
  def decayed_combinator_paths(self) -> list[str]:
    """Paths of the combinator's parameters that take weight decay."""
    return [f"combinator/{name}" for name in self.combinator.decayed_parameters]

  def bind(self, params: PyTree) -> Decoder:
    """Returns the decoder with these parameters, which may be abstract."""
    state = jax.tree.map(lambda leaf: leaf, self._template)
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(self._graphdef, state)

  def init(self, seed: int, only: Collection[str] | None = None) -> PyTree:
    """Returns fresh parameters, made on their devices: no unsharded copy exists.

    Args:
      seed: the seed of their random numbers.
      only: paths, such as combinator/query, of the parameters to make; None: all. The values of a
        parameter do not depend on this choice.
    """
    return self.init_program(only)(jax.random.key(seed))

  def init_program(self, only: Collection[str] | None = None) -> Callable[[Array], PyTree]:
    """Returns a jitted function that makes fresh parameters of a key; see `init`."""

    def choose(tree: PyTree) -> PyTree:
      flat = nnx.traversals.flatten_mapping(tree, sep="/")
      chosen = {path: leaf for path, leaf in flat.items() if only is None or path in only}
      return nnx.traversals.unflatten_mapping(chosen, sep="/")

    def create(key: Array) -> PyTree:
      model = Decoder(self.config, layout=self.layout, rngs=nnx.Rngs(params=key))
      params = choose(nnx.to_pure_dict(nnx.state(model)))
      # A step returns no weak types, and would be compiled again for its own results.
      return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), params)

    shardings = jax.tree.map(lambda leaf: leaf.sharding, choose(self.abstract))
    return jax.jit(create, out_shardings=shardings)
