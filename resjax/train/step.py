"""One training step and one evaluation step, as pure functions."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.stages import Wrapped

from resjax.base import PyTree
from resjax.models import LossSums, ModelDef, balanced, loss_sums
from resjax.train import guard
from resjax.train.gradients import Batch, batch_gradient, split_as_moments
from resjax.train.runs.config import HealthConfig, TrainConfig
from resjax.train.state import TrainState, abstract_state

Metrics = Mapping[str, Any]
Step = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


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

  The gradient is that of `batch_gradient` over the batch's tokens, by which sums are divided once:
  a token weighs the same in every microbatch. Selection biases of experts get none; after the
  update they take a step against the load of the whole batch (`balanced`).

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
  find = batch_gradient(model, config)

  def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    gradients, (sums, routing) = find(state.params, batch)
    with jax.named_scope("optimizer"):
      tokens = jnp.maximum(sums.tokens, 1.0)
      gradients = jax.tree.map(lambda g: g / tokens, gradients)
      params = split_as_moments(model, state.params)
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
