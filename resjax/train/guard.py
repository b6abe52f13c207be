"""The step guard: it finds steps that would harm a run on the device, skips and counts them."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from resjax.runs.config import MAX_SPIKE_WINDOW, HealthConfig
from resjax.typing import Array, PyTree


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
  """Returns whether a value is far above those of the last steps that were taken."""
  filled = jnp.minimum(taken, config.spike_window)
  age = (taken - 1 - jnp.arange(MAX_SPIKE_WINDOW)) % MAX_SPIKE_WINDOW
  inside = age < filled
  mean = jnp.mean(history, where=inside)
  deviation = jnp.std(history, mean=mean, where=inside)  # type: ignore[call-arg]  # newer stubs only
  limit = mean + config.spike_sigma * deviation
  return (2 * filled >= config.spike_window) & (value > limit)


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
  config: HealthConfig, *, loss: float, grad_norm: float, skipped: int, in_a_row: int
) -> str | None:
  """Returns why a run should end after a step, as the end of a sentence; None if it may go on.

  It should end when too many steps in a row were skipped, or when a step was taken whose loss or
  gradient norm is not finite.

  Args:
    config: the settings of the guard.
    loss: the loss of the step.
    grad_norm: the norm of its gradient.
    skipped: the number of steps skipped so far, with this one.
    in_a_row: the number of steps skipped since the last step that was taken, with this one.
  """
  values = f"loss {loss:.6g} and gradient norm {grad_norm:.6g}"
  if in_a_row >= config.max_skipped:
    return (
      f"{values} and is skipped as number {in_a_row} in a row, {skipped} in all; lower "
      f"config.optim.learning_rate, or raise config.health.max_skipped={config.max_skipped} or "
      f"config.health.spike_sigma={config.spike_sigma:g}"
    )
  if not in_a_row and not (math.isfinite(loss) and math.isfinite(grad_norm)):
    return (
      f"{values}; lower config.optim.learning_rate, or skip such steps with "
      "config.health.skip_nonfinite=True"
    )
  return None
