"""The state of training, and how it comes to life on a mesh."""

import dataclasses
from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding

from resjax.models.config import DecoderConfig
from resjax.models.decoder import Decoder
from resjax.models.parameters import Parameter, failures, refuse
from resjax.sharding import Layout
from resjax.train.guard import GuardState
from resjax.typing import Array, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """What changes from step to step.

  Attributes:
    step: number of finished steps, int32 scalar. It says how much of the data was used, so it
      counts skipped steps too; the counts in `opt_state`, and with them the learning rate, do not.
    params: nested dict of float32 arrays.
    opt_state: of optax.
    guard: what the step guard remembers.
  """

  step: Array
  params: PyTree
  opt_state: PyTree
  guard: GuardState


class ModelDef:
  """A decoder without its parameters: turns a nested dict of arrays into a `Decoder`.

  Args:
    config: the decoder.
    layout: mesh and rules.

  Attributes:
    abstract: the parameters as nested dict of `ShapeDtypeStruct` with shardings.

  Raises:
    ValueError: sizes of parameters that do not divide over their devices.
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

    def abstract(path, variable):
      split = layout.sharding(*parameters[path].axes)
      return jax.ShapeDtypeStruct(variable.shape, variable.dtype, sharding=split)

    self.abstract = nnx.traversals.unflatten_mapping(
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
    """Returns the decoder with these parameters."""
    state = jax.tree.map(lambda leaf: leaf, self._template)
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(self._graphdef, state)

  def init(self, seed: int, only: Collection[str] | None = None) -> PyTree:
    """Returns fresh parameters, made on their devices: no unsharded copy exists.

    Args:
      seed: of the random numbers.
      only: paths such as combinator/query of those to make, whose values do not depend on the
        choice; None: all.
    """
    return self.init_program(only)(jax.random.key(seed))

  def init_program(self, only: Collection[str] | None = None) -> Callable[[Array], PyTree]:
    """Returns what makes fresh parameters of a key, jitted; see `init`."""

    def choose(tree):
      flat = nnx.traversals.flatten_mapping(tree, sep="/")
      chosen = {path: leaf for path, leaf in flat.items() if only is None or path in only}
      return nnx.traversals.unflatten_mapping(chosen, sep="/")

    def create(key):
      model = Decoder(self.config, layout=self.layout, rngs=nnx.Rngs(params=key))
      return choose(nnx.to_pure_dict(nnx.state(model)))

    shardings = jax.tree.map(lambda leaf: leaf.sharding, choose(self.abstract))
    return jax.jit(create, out_shardings=shardings)


def abstract_state(model: ModelDef, optimizer: optax.GradientTransformation) -> TrainState:
  """Returns shapes, dtypes and shardings of the state; moments lie where their parameters lie."""
  opt_state = jax.eval_shape(optimizer.init, model.abstract)
  step, guard = jax.eval_shape(_counters)
  replicated = model.layout.sharding()
  opt_state = optax.tree_utils.tree_map_params(
    optimizer,
    lambda leaf, param: leaf if _is_masked(leaf) else _placed(leaf, param.sharding),
    opt_state,
    model.abstract,
    is_leaf=_is_masked,
    transform_non_params=lambda leaf: _placed(leaf, replicated),
  )
  step, guard = jax.tree.map(lambda leaf: _placed(leaf, replicated), (step, guard))
  return TrainState(step, model.abstract, opt_state, guard)


def _counters() -> tuple[Array, GuardState]:
  return jnp.zeros((), jnp.int32), GuardState.zeros()


def _is_masked(leaf) -> bool:
  """Whether a parameter has no such moment, because another rule updates it."""
  return isinstance(leaf, optax.MaskedNode)


def _placed(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding | None) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def init_state(model: ModelDef, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
  """Returns the state before the first step, sharded like `abstract_state`."""
  return first_state(model, optimizer, model.init(seed))


def first_state(
  model: ModelDef, optimizer: optax.GradientTransformation, params: PyTree
) -> TrainState:
  """Returns the state before the first step with parameters that are where they belong."""
  abstract = abstract_state(model, optimizer)

  def create(params):
    return *_counters(), optimizer.init(params)

  planned = abstract.step, abstract.guard, abstract.opt_state
  shardings = jax.tree.map(lambda leaf: leaf.sharding, planned)
  step, guard, opt_state = jax.jit(create, out_shardings=shardings)(params)
  return TrainState(step, params, opt_state, guard)
