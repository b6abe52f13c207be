"""One training step and one evaluation step, as pure functions."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec
from jax.stages import Wrapped

from resjax.base import Array, PyTree
from resjax.base.sharding import COPIES
from resjax.models import LossSums, ModelDef, balanced, loss_sums, no_routing
from resjax.nn import Routing
from resjax.train import guard
from resjax.train.runs.config import HealthConfig, TrainConfig
from resjax.train.state import TrainState, abstract_state

Batch = Mapping[str, Array]
Metrics = Mapping[str, Any]
Step = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
# The sums of the loss, and those of the routers' choices where there are experts.
Sums = tuple[LossSums, Routing | None]
Gradient = Callable[[PyTree, Batch], tuple[PyTree, Sums]]


def make_train_step(
  model: ModelDef,
  optimizer: optax.GradientTransformation,
  learning_rate: optax.Schedule,
  config: TrainConfig,
  health: HealthConfig | None = None,
  compiler_options: Mapping[str, str] | None = None,
) -> Wrapped:
  """Returns the jitted function of `step_function`.

  The old state is donated. The new one has the shardings of the old one, wherever the
  optimizer's updates are. Takes the arguments of `step_function`, and:

  Args:
    compiler_options: options of the compiler, by name; None: none.
  """
  train_step = step_function(model, optimizer, learning_rate, config, health)
  shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(model, optimizer))
  return jax.jit(
    train_step,
    donate_argnums=0,
    out_shardings=(shardings, None),
    compiler_options=dict(compiler_options or {}),
  )


def step_function(
  model: ModelDef,
  optimizer: optax.GradientTransformation,
  learning_rate: optax.Schedule,
  config: TrainConfig,
  health: HealthConfig | None = None,
) -> Step:
  """Returns train_step(state, batch) -> (state, metrics).

  Where `Layout.moments` splits moments over more devices than parameters, each device updates the
  part whose moments it has, and updated parameters are gathered once.

  The objective is Σ (nats + z_loss · z) / Σ tokens over the whole batch: with microbatches the
  sums are accumulated and divided once, so that a token weighs the same in every microbatch.
  Routers of experts add router_balance_loss · balance + router_z_loss · z to Σ, means over their
  layers, where the loads that `balance` multiplies are those of a microbatch on all devices.
  Selection biases get no gradient: after the update they take a step against the load of the whole
  batch (`balanced`).

  A step that `health` does not let through leaves parameters, moments and the optimizer's counts
  as they are, bit by bit. The metrics are `sums`, `routing` (None without experts) and `grad_norm`
  of the step, its `update` (None where nobody judges it), its `learning_rate`, `skipped` (0 or 1),
  and `skipped_total` and `skipped_in_a_row` with this step counted.

  Args:
    model: the decoder without its parameters.
    optimizer: what `optim.make_optimizer` returns.
    learning_rate: the optimizer's schedule, for the metrics.
    config: the settings of the loss and of microbatches.
    health: tells which steps are skipped; None: no step is.
  """

  def objective_sum(model: ModelDef, params: PyTree, batch: Batch) -> tuple[Array, Sums]:
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

  def parts(tree: PyTree) -> PyTree:
    """Returns parameters or their gradients split as moments are, where that is another way."""
    layout = model.layout
    if not layout.rules.moments:
      return tree
    # Gradients are scattered over the devices of a parameter first: in one step, over all devices,
    # the compiler for TPUs would add up whole gradients and scatter none.
    for split in (lambda leaf: leaf.sharding, layout.moments):
      tree = jax.lax.with_sharding_constraint(tree, jax.tree.map(split, model.abstract))
    return tree

  def stacked(tree: PyTree) -> PyTree:
    """Returns gradients [copies, ...], of which each device has those of its copy of the model."""

    def sharding(leaf: jax.ShapeDtypeStruct) -> NamedSharding:
      return NamedSharding(layout.mesh, PartitionSpec(COPIES, *leaf.sharding.spec))

    return jax.lax.with_sharding_constraint(tree, jax.tree.map(sharding, model.abstract))

  def gradient_of(model: ModelDef) -> Gradient:
    return jax.grad(functools.partial(objective_sum, model), has_aux=True)

  gradient, layout = gradient_of(model), model.layout
  # Who splits moments over copies saves memory, and has gradients split so at once. The balance of
  # routers multiplies the loads of all rows of a microbatch. Within a TPU slice and between GPUs,
  # whose fused attention cannot run for each copy, the network is fast.
  together = config.microbatches == 1 or layout.rules.moments or model.config.moe.num_experts
  own = (layout.copies,) if not together and layout.copies > 1 and layout.copies_are_apart else ()
  if own:
    of_one = gradient_of(ModelDef(model.config, layout.of_one_copy))
    of_each = jax.vmap(of_one, (None, 0), spmd_axis_name=COPIES)

  def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    if config.microbatches == 1:
      gradients, (sums, routing) = gradient(state.params, batch)
      gradients = parts(gradients)
    else:
      # Each copy of the model adds up its own gradients. After the last microbatch they are added
      # to each other, once: the network between TPU slices is slow.
      find, keep = (of_each, stacked) if own else (gradient, parts)
      like = state.params, (LossSums.zeros(), no_routing(model.config))
      zeros = jax.tree.map(lambda a: jnp.zeros((*own, *a.shape), a.dtype), like)
      add = functools.partial(_add_microbatch, find, keep, state.params)
      microbatches = _split(batch, config.microbatches, *own)
      total, _ = jax.lax.scan(add, (keep(zeros[0]), zeros[1]), microbatches)
      if own:
        total = jax.tree.map(lambda a: jnp.sum(a, axis=0), total)
      gradients, (sums, routing) = total
    with jax.named_scope("optimizer"):
      tokens = jnp.maximum(sums.tokens, 1.0)
      gradients = jax.tree.map(lambda g: g / tokens, gradients)
      params = parts(state.params)
      updates, opt_state = optimizer.update(gradients, state.opt_state, params)
      moved = optax.apply_updates(params, updates)
      if routing is not None and model.config.moe.selection_bias:
        moved = balanced(moved, routing, config.router_bias_rate)
      new = moved, opt_state
      seen, grad_norm, update = state.guard, optax.tree.norm(gradients), None
      if health is not None and health.guards_steps:
        loss, norm = guard.agreed(model.layout, (sums.nats / tokens, grad_norm))
        take, seen = guard.judge(health, seen, loss, norm)
        new = guard.choose(take, new, (params, state.opt_state))
      if health is not None and health.guards_updates:
        update = guard.agreed(model.layout, guard.measure(optimizer, params, *new))
    # Every process reads whole metrics, and the counts of experts might be split as these are.
    routing = jax.tree.map(lambda x: model.layout.constrain(x, *[None] * x.ndim), routing)
    metrics = {
      "sums": sums,
      "routing": routing,
      "grad_norm": grad_norm,
      "update": update,
      "learning_rate": learning_rate(state.step - state.guard.skipped),
      "skipped": seen.skipped - state.guard.skipped,
      "skipped_total": seen.skipped,
      "skipped_in_a_row": seen.in_a_row,
    }
    return TrainState(state.step + 1, *new, seen), metrics

  return train_step


def make_eval_step(
  model: ModelDef, config: TrainConfig, compiler_options: Mapping[str, str] | None = None
) -> Wrapped:
  """Returns eval_step(params, batch) -> loss sums, jitted with these options."""

  def eval_step(params: PyTree, batch: Batch) -> LossSums:
    decoder = model.bind(params)
    hidden = decoder(batch["inputs"], batch["segment_ids"], batch["positions"])
    return loss_sums(decoder, hidden, batch, config.loss_chunk)

  return jax.jit(eval_step, compiler_options=dict(compiler_options or {}))


def _add_microbatch(
  gradient: Gradient,
  parts: Callable[[PyTree], PyTree],
  params: PyTree,
  total: PyTree,
  microbatch: Batch,
) -> tuple[PyTree, None]:
  """Adds gradients and loss sums of a microbatch to those before it.

  Args:
    gradient: what returns them.
    parts: splits a tree of gradients as they are to be kept while they are added.
    params: the parameters.
    total: the gradients, split so, and the loss sums of the microbatches before.
    microbatch: its rows [b, T].
  """
  gradients, sums = gradient(params, microbatch)
  return jax.tree.map(jnp.add, total, (parts(gradients), sums)), None


def _split(batch: Batch, microbatches: int, *copies: int) -> Batch:
  """Splits a batch [B, ...] into M microbatches [M, B / M, ...], each by copies where told so.

  Neighbouring rows go to different parts, so that every device keeps the rows that it has.
  """

  def part(x: Array) -> Array:
    return jnp.moveaxis(x.reshape(*copies, -1, microbatches, *x.shape[1:]), len(copies) + 1, 0)

  return jax.tree.map(part, batch)
