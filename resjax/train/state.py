"""The state of training: its fields, their places on the mesh, and their initial values."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding

from resjax.base import Array, PyTree
from resjax.models import ModelDef
from resjax.train.guard import GuardState, is_masked


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """All that changes from step to step.

  Attributes:
    step: the number of finished steps, an int32 scalar. It says how much of the data was used, so
      it counts skipped steps too; the counts in `opt_state`, and with them the learning rate, do
      not.
    params: the parameters, a nested dict of float32 arrays.
    opt_state: the state of the optax transformation.
    guard: the state of the step guard.
  """

  step: Array
  params: PyTree
  opt_state: PyTree
  guard: GuardState


def abstract_state(model: ModelDef, optimizer: optax.GradientTransformation) -> TrainState:
  """Returns the shapes, dtypes and shardings of the state.

  Moments are split over the devices as their parameters are, or over more (`Layout.moments`); all
  else is copied to every device.
  """
  opt_state = jax.eval_shape(optimizer.init, model.abstract)
  step, guard = jax.eval_shape(_counters)
  replicated = model.layout.sharding()
  opt_state = optax.tree_utils.tree_map_params(
    optimizer,
    lambda leaf, param: leaf if is_masked(leaf) else _placed(leaf, model.layout.moments(param)),
    opt_state,
    model.abstract,
    is_leaf=is_masked,
    transform_non_params=lambda leaf: _placed(leaf, replicated),
  )
  step, guard = jax.tree.map(lambda leaf: _placed(leaf, replicated), (step, guard))
  return TrainState(step, model.abstract, opt_state, guard)


def _counters() -> tuple[Array, GuardState]:
  return jnp.zeros((), jnp.int32), GuardState.zeros()


def _placed(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding | None) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def init_state(model: ModelDef, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
  """Returns the state before the first step, sharded like `abstract_state`."""
  return first_state(model, optimizer, model.init(seed))


def first_state(
  model: ModelDef, optimizer: optax.GradientTransformation, params: PyTree
) -> TrainState:
  """Returns the state before the first step, given parameters that lie where they belong."""
  abstract = abstract_state(model, optimizer)

  def create(params: PyTree) -> tuple:
    return *_counters(), optimizer.init(params)

  planned = abstract.step, abstract.guard, abstract.opt_state
  shardings = jax.tree.map(lambda leaf: leaf.sharding, planned)
  step, guard, opt_state = jax.jit(create, out_shardings=shardings)(params)
  return TrainState(step, params, opt_state, guard)
