"""Steps that would harm a run: found on the device, left out, and counted."""

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

  Its shapes do not depend on the config: a run that resumes may choose another window.

  Attributes:
    skipped: number of steps left out so far, int32 scalar.
    in_a_row: number of them since the last step that was taken, int32 scalar.
    taken: number of steps taken under the guard, int32 scalar.
    losses: [MAX_SPIKE_WINDOW] of the last steps taken; that of step n of them is at n modulo size.
    grad_norms: [MAX_SPIKE_WINDOW], likewise.
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

  Not taken are, where they are asked for: a loss or gradient norm that is not finite; one above
  mean + spike_sigma · std of the last spike_window steps taken, once half of these are there.

  Args:
    config: what is asked for.
    guard: before this step.
    loss: of this step, fp32 scalar.
    grad_norm: of this step before clipping, fp32 scalar.

  Returns:
    A bool scalar, true where the step is taken, and the state after it.
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
  filled = jnp.minimum(taken, config.spike_window)
  age = (taken - 1 - jnp.arange(MAX_SPIKE_WINDOW)) % MAX_SPIKE_WINDOW
  inside = age < filled
  mean = jnp.mean(history, where=inside)
  limit = mean + config.spike_sigma * jnp.std(history, mean=mean, where=inside)
  return (2 * filled >= config.spike_window) & (value > limit)


def choose(take: Array, new: PyTree, old: PyTree) -> PyTree:
  """Returns `new` where the step is taken, else `old`, bit by bit.

  A select is exact where a zeroed update is not: -0 + 0 is +0, devices flush subnormal sums to 0,
  and a zeroed gradient still moves moments and counts. It is elementwise, so it joins the loop
  that computes `new`, in the place of a donated `old`: compiled for four v5e, peak memory and
  bytes moved of a decoder's step stay what they are. XLA's CPU backend copies the moments.

  Of optax, apply_if_finite (which takes a bad step in the end) and MultiSteps (which holds one more
  gradient) know no loss; conditionally_mask could, but adds a zero update and counts skipped steps.
  """
  return jax.tree.map(lambda a, b: jnp.where(take, a, b), new, old)


def problem(
  config: HealthConfig, *, loss: float, grad_norm: float, skipped: int, in_a_row: int
) -> str | None:
  """Returns why a run goes nowhere, the end of a line; None where it may go on.

  Too many steps in a row were left out, or a step was taken with a loss or gradient norm that is
  not finite.

  Args:
    config: of the guard.
    loss: of the step.
    grad_norm: of the step.
    skipped: steps left out so far, this one included.
    in_a_row: steps left out up to this one without one taken between.
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
