"""The gradient of a batch, whole or added up over microbatches."""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from resjax.base import Array, PyTree
from resjax.base.sharding import COPIES
from resjax.models import LossSums, ModelDef, loss_sums, no_routing
from resjax.nn import Routing
from resjax.train.runs.config import TrainConfig

Batch = Mapping[str, Array]
# The sums of the loss, and those of the routers' choices where there are experts.
Sums = tuple[LossSums, Routing | None]
Gradient = Callable[[PyTree, Batch], tuple[PyTree, Sums]]


def batch_gradient(model: ModelDef, config: TrainConfig) -> Gradient:
  """Returns find(params, batch) -> (gradients, sums), of a batch of rows [B, T].

  The objective is Σ (nats + z_loss · z) over tokens. Routers of experts add router_balance_loss ·
  balance + router_z_loss · z for each of them, means over their layers, where the loads that
  `balance` multiplies are those of a microbatch on all devices. Gradients are split as moments are.
  """
  find, keep = _gradient(model, config), functools.partial(split_as_moments, model)
  layout, own = model.layout, tuple[int, ...]()
  # Each copy of the model adds up its own gradients. After the last microbatch they are added to
  # each other, once: the network between TPU slices is slow. Within a slice and between GPUs, whose
  # fused attention cannot run for each copy, it is fast. Who splits moments over copies saves
  # memory, and has gradients split so at once. The balance of routers multiplies the loads of all
  # rows of a microbatch.
  apart = config.microbatches > 1 and layout.copies > 1 and layout.copies_are_apart
  if apart and not layout.rules.moments and not model.config.moe.num_experts:
    of_one = _gradient(ModelDef(model.config, layout.of_one_copy), config)
    find, own = jax.vmap(of_one, (None, 0), spmd_axis_name=COPIES), (layout.copies,)
    keep = functools.partial(_split_by_copies, model)

  def of_batch(params: PyTree, batch: Batch) -> tuple[PyTree, Sums]:
    if config.microbatches == 1:
      gradients, sums = find(params, batch)
      return keep(gradients), sums
    like = params, (LossSums.zeros(), no_routing(model.config))
    zeros = jax.tree.map(lambda a: jnp.zeros((*own, *a.shape), a.dtype), like)

    def add(total: PyTree, microbatch: Batch) -> tuple[PyTree, None]:
      gradients, sums = find(params, microbatch)
      return jax.tree.map(jnp.add, total, (keep(gradients), sums)), None

    microbatches = _microbatches(batch, config.microbatches, *own)
    total, _ = jax.lax.scan(add, (keep(zeros[0]), zeros[1]), microbatches)
    return jax.tree.map(lambda a: jnp.sum(a, axis=0), total) if own else total

  return of_batch


def split_as_moments(model: ModelDef, tree: PyTree) -> PyTree:
  """Returns parameters or their gradients split as moments are, where that is another way."""
  layout = model.layout
  if not layout.rules.moments:
    return tree
  # Gradients are scattered over the devices of a parameter first: in one step, over all devices,
  # the compiler for TPUs would add up whole gradients and scatter none.
  for split in (lambda leaf: leaf.sharding, layout.moments):
    tree = jax.lax.with_sharding_constraint(tree, jax.tree.map(split, model.abstract))
  return tree


def _split_by_copies(model: ModelDef, tree: PyTree) -> PyTree:
  """Returns gradients [copies, ...], of which each device has those of its copy of the model."""

  def sharding(leaf: jax.ShapeDtypeStruct) -> NamedSharding:
    return NamedSharding(model.layout.mesh, PartitionSpec(COPIES, *leaf.sharding.spec))

  return jax.lax.with_sharding_constraint(tree, jax.tree.map(sharding, model.abstract))


def _gradient(model: ModelDef, config: TrainConfig) -> Gradient:
  """Returns the gradient of a microbatch by automatic differentiation."""

  def objective_sum(params: PyTree, batch: Batch) -> tuple[Array, Sums]:
    decoder = model.bind(params)
    hidden, routing = decoder.routed(batch["inputs"], batch["segment_ids"], batch["positions"])
    sums = loss_sums(decoder, hidden, batch, config.loss_chunk)
    total = sums.nats + config.z_loss * sums.z
    if routing is not None:
      # Sums over all tokens, where the loss is a mean over those whose targets are asked for.
      there = jnp.sum(batch["segment_ids"] != 0, dtype=sums.tokens.dtype)
      asked = sums.tokens / jnp.maximum(there, 1.0)
      of_routers = config.router_balance_loss * routing.balance + config.router_z_loss * routing.z
      total += asked * of_routers
    return total, (sums, routing)

  return jax.grad(objective_sum, has_aux=True)


def _microbatches(batch: Batch, count: int, *copies: int) -> Batch:
  """Splits a batch [B, ...] into microbatches [count, B / count, ...], by copies where told so.

  Neighbouring rows go to different parts, so that every device keeps the rows that it has.
  """

  def part(x: Array) -> Array:
    return jnp.moveaxis(x.reshape(*copies, -1, count, *x.shape[1:]), len(copies) + 1, 0)

  return jax.tree.map(part, batch)
