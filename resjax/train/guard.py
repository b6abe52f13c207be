"""The step guard: it finds steps that would harm a run on the device, skips and counts them."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from resjax.base import Array, PyTree
from resjax.base.sharding import Layout
from resjax.train.runs.config import MAX_SPIKE_WINDOW, HealthConfig

# No advice to raise the limit is given for updates so many times above it: what they leave would be
# saved over good checkpoints.
_FAR = 10
_USUAL_PARAMETER = 0.02  # the standard deviation that most parameters of Transformers start with


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GuardState:
  """What the guard remembers; a part of the train state, so that checkpoints hold it.

  Its shapes do not depend on the config, so that a resumed run may choose another window.

  Attributes:
    skipped: the number of steps skipped so far, an int32 scalar.
    in_a_row: the number of steps skipped since the last step that was taken, an int32 scalar.
    taken: the number of steps taken under the guard, an int32 scalar.
    losses: [MAX_SPIKE_WINDOW], the losses of the last steps that were taken; the loss of the n-th
      of all of them is at index n modulo MAX_SPIKE_WINDOW.
    grad_norms: [MAX_SPIKE_WINDOW], the norms of their gradients, in the same places.
  """

  skipped: Array
  in_a_row: Array
  taken: Array
  losses: Array
  grad_norms: Array

  @classmethod
  def zeros(cls) -> "GuardState":
    """Returns the state before the first step."""
    counts = [jnp.zeros((), jnp.int32) for _ in range(3)]
    return cls(*counts, *[jnp.zeros(MAX_SPIKE_WINDOW, jnp.float32) for _ in range(2)])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Update:
  """What the guard judges a step by after it was taken.

  The measures are sums over what a step writes, so that XLA finds them while it writes that, and
  nothing is read twice. A test before the step would read gradients, moments and parameters once
  more: 12 passes per sublayer of the 1.3B config with four rows on a device.

  Attributes:
    norm: the norm of the change of all parameters, an fp32 scalar.
    scale: the norm of all parameters before it, but at least that of as many parameters of 0.02
      each, so that a model whose parameters begin at zero can begin to train; an fp32 scalar. It is
      infinite also where parameters are so large, above 1e19, that their squares are infinite.
    bad_moments: how many numbers of the optimizer's new moments are not finite, an fp32 scalar.
  """

  norm: Array
  scale: Array
  bad_moments: Array


def measure(
  optimizer: optax.GradientTransformation, old: PyTree, new: PyTree, opt_state: PyTree
) -> Update:
  """Returns the size of an update, and how many moments it leaves that are not finite.

  The new parameters need no look of their own: where both norms are finite, they are, too.

  Args:
    optimizer: the transformation that made the update.
    old: the parameters before the update.
    new: those after it.
    opt_state: the state of the optimizer after it.
  """
  bad: list[Array] = []

  def count(moment: Any) -> None:
    if not is_masked(moment):
      bad.append(jnp.sum(~jnp.isfinite(moment), dtype=jnp.float32))

  optax.tree_utils.tree_map_params(optimizer, count, opt_state, is_leaf=is_masked)
  pairs = list(zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True))
  norm = sum(jnp.sum(jnp.square(b - a)) for a, b in pairs)
  scale = sum(jnp.sum(jnp.square(a)) for a, _ in pairs)
  least = _USUAL_PARAMETER**2 * sum(leaf.size for leaf, _ in pairs)
  # A sum of none is 0, as plain gradient descent has no moments.
  return Update(jnp.sqrt(norm), jnp.sqrt(jnp.maximum(scale, least)), sum(bad, jnp.float32(0)))


def agreed(layout: Layout, values: PyTree) -> PyTree:
  """Returns the largest value that any device has of each scalar; infinity if one is not finite.

  Devices hold copies of the same parameters and moments. Where the memory of one goes wrong, the
  copies differ, and yet all devices have to take a step or to skip it.

  Args:
    layout: the devices.
    values: fp32 scalars, which are alike on all devices unless one has gone wrong.
  """
  if not layout.spans_devices:
    return values

  def largest(values: PyTree) -> PyTree:
    finite = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, jnp.inf), values)
    return jax.lax.pmax(finite, layout.mesh.axis_names)

  everywhere = PartitionSpec()
  return jax.shard_map(
    largest, mesh=layout.mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False
  )(values)


def judge(
  config: HealthConfig, guard: GuardState, loss: Array, grad_norm: Array
) -> tuple[Array, GuardState]:
  """Decides whether a step is taken.

  If the config says so, a step is skipped when its loss or gradient norm is not finite, or when one
  of them is above mean + spike_sigma · std of the last spike_window steps that were taken, as soon
  as there are half as many.

  Args:
    config: says which steps are skipped.
    guard: the state of the guard before this step.
    loss: the loss of this step, an fp32 scalar.
    grad_norm: the norm of its gradient before clipping, an fp32 scalar.

  Returns:
    A bool scalar, which is true if the step is taken, and the state of the guard after it.
  """
  take = jnp.ones((), jnp.bool_)
  if config.skip_nonfinite:
    take &= jnp.isfinite(loss) & jnp.isfinite(grad_norm)
  if config.spike_sigma:
    loss_spikes = _is_spike(config, guard.taken, guard.losses, loss)
    take &= ~(loss_spikes | _is_spike(config, guard.taken, guard.grad_norms, grad_norm))
  skip = (~take).astype(jnp.int32)
  place = guard.taken % MAX_SPIKE_WINDOW
  after = GuardState(
    skipped=guard.skipped + skip,
    in_a_row=(guard.in_a_row + 1) * skip,
    taken=guard.taken + 1 - skip,
    losses=jnp.where(take, guard.losses.at[place].set(loss), guard.losses),
    grad_norms=jnp.where(take, guard.grad_norms.at[place].set(grad_norm), guard.grad_norms),
  )
  return take, after


def _is_spike(config: HealthConfig, taken: Array, history: Array, value: Array) -> Array:
  """Returns whether a value is far above the values of the last steps that were taken."""
  filled = jnp.minimum(taken, config.spike_window)
  age = (taken - 1 - jnp.arange(MAX_SPIKE_WINDOW)) % MAX_SPIKE_WINDOW
  inside = age < filled
  mean = jnp.mean(history, where=inside)
  deviation = jnp.std(history, mean=mean, where=inside)  # type: ignore[call-arg]  # newer stubs only
  limit = mean + config.spike_sigma * deviation
  return (2 * filled >= config.spike_window) & (value > limit)


def is_masked(leaf: Any) -> bool:
  """Returns whether a leaf stands for a moment that a parameter does not have.

  Another rule of the optimizer updates such a parameter.
  """
  return isinstance(leaf, optax.MaskedNode)


def choose(take: Array, new: PyTree, old: PyTree) -> PyTree:
  """Returns `new` if the step is taken, and otherwise `old`, bit by bit.

  Adding a zeroed update would not be exact: -0 + 0 is +0, devices flush subnormal sums to 0, and a
  zeroed gradient still changes moments and counts. The choice is elementwise, so that XLA makes it
  in the loop that computes `new`, in the memory of a donated `old`: in the training step of a
  decoder that is compiled for four v5e, it changes neither the peak of memory nor the bytes moved.
  XLA's CPU backend copies the moments.

  In optax, apply_if_finite, which takes a bad step in the end, and MultiSteps, which holds one more
  gradient, do not see the loss. conditionally_mask could, but it adds a zero update and counts
  skipped steps.
  """
  return jax.tree.map(lambda a, b: jnp.where(take, a, b), new, old)


def problem(
  config: HealthConfig,
  *,
  loss: float,
  grad_norm: float,
  skipped: int,
  in_a_row: int,
  update: Update | None = None,
) -> str | None:
  """Returns why a run should end after a step, as the end of a sentence; None if it may go on.

  It should end when too many steps in a row were skipped, when a step was taken whose loss or
  gradient norm is not finite, or when the state after it is not finite or its update larger than
  max_update times the parameters. The sentence ends with what to change before the run goes on from
  its last checkpoint.

  Args:
    config: the settings of the guard.
    loss: the loss of the step.
    grad_norm: the norm of its gradient.
    skipped: the number of steps skipped so far, with this one.
    in_a_row: the number of steps skipped since the last step that was taken, with this one.
    update: the update of the step, as numbers; None: it was not judged.
  """
  values = describe(loss, grad_norm, update)
  if in_a_row >= config.max_skipped:
    remedy = _remedy(config, loss, grad_norm, update)
    return f"{values} and is skipped as number {in_a_row} in a row, {skipped} in all; {remedy}"
  if in_a_row:
    return None
  if not (math.isfinite(loss) and math.isfinite(grad_norm)):
    return (
      f"{values}; lower config.optim.learning_rate, or skip such steps with "
      f"config.health.skip_nonfinite=True{_if_depth(loss, grad_norm)}"
    )
  if update is not None and (_is_poisoned(update) or _is_too_large(config, update)):
    return f"{values}; {_remedy(config, loss, grad_norm, update)}"
  return None


def describe(loss: float, grad_norm: float, update: Update | None) -> str:
  """Returns the values that the guard judges a step by, in words."""
  words = f"loss {loss:.6g} and gradient norm {grad_norm:.6g}"
  if update is None:
    return words
  if _is_poisoned(update):
    what = "moments of the optimizer" if math.isfinite(update.scale) else "parameters"
    return f"{words}, and {what} that are not finite"
  if not (math.isfinite(loss) and math.isfinite(grad_norm)):
    return words
  return (
    f"{words}, and an update of norm {update.norm:.4g} of parameters of norm {update.scale:.4g}"
  )


def _is_poisoned(update: Update) -> bool:
  """Returns whether parameters before a step, or moments after it, are not finite."""
  return not math.isfinite(update.scale) or bool(update.bad_moments > 0)


def _is_too_large(config: HealthConfig, update: Update) -> bool:
  limit = config.max_update * update.scale if config.max_update else math.inf
  return not (update.norm <= limit and math.isfinite(update.norm))


def _remedy(config: HealthConfig, loss: float, grad_norm: float, update: Update | None) -> str:
  if update is not None and _is_poisoned(update):
    return (
      "the state in memory is damaged and was not saved, so the same command needs no change; if "
      "that happens again, check the memory of the devices"
    )
  if update is not None and _is_too_large(config, update):
    lower = "lower config.optim.learning_rate"
    if update.norm > _FAR * config.max_update * update.scale or not math.isfinite(update.norm):
      return lower
    return f"{lower}, or raise config.health.max_update={config.max_update:g}"
  # Which of the other settings helps depends on what was tested.
  others = f"config.health.max_skipped={config.max_skipped}"
  if config.spike_sigma and math.isfinite(loss) and math.isfinite(grad_norm):
    others += f" or config.health.spike_sigma={config.spike_sigma:g}"
  return f"lower config.optim.learning_rate, or raise {others}{_if_depth(loss, grad_norm)}"


def _if_depth(loss: float, grad_norm: float) -> str:
  """Returns what else may be the cause where a loss is finite and its gradient is not."""
  if not math.isfinite(loss) or math.isfinite(grad_norm):
    return ""
  return (
    "; if it is so from the first step on, the gradient grows too much with depth: lower "
    "config.model.num_layers, or with deep_delta its beta_init, or raise its eps, or take another "
    "config.model.residual.name"
  )
