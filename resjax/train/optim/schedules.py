"""The schedule of the learning rate."""

import optax

from resjax.base import Array, promoting
from resjax.train.optim.config import OptimizerConfig


def schedule(
  config: OptimizerConfig, steps: int, peak: float | Array | None = None
) -> optax.Schedule:
  """Returns the learning rate as a function of the number of finished steps, 0..steps-1.

  During the warm-up it is peak · (step + 1) / W, with W = `warmup_steps(config, steps)`. Then
  follows, so that the last step has the final rate: a half cosine (cosine); the peak and a linear
  decay over the last decay_fraction · steps steps (wsd, Hu et al. 2024, arXiv:2404.06395); or the
  peak (constant).

  Args:
    config: the settings of the optimizer.
    steps: the number of steps of the run.
    peak: the peak, which may be traced; default: that of the config.

  Raises:
    ValueError: there is no step.
  """
  if steps < 1:
    raise ValueError(f"config.train.steps is {steps}; it must be at least 1")
  warmup, peak = warmup_steps(config, steps), config.learning_rate if peak is None else peak
  # `top` is the first step with the peak, where the rest of the schedule starts.
  top, last = max(warmup - 1, 0), steps - 1
  # Shares of the peak, so that a traced peak gives the rates of the same number.
  stable = optax.constant_schedule(1.0)
  parts, boundaries = [stable], []
  if warmup > 1:
    parts, boundaries = [optax.linear_schedule(1 / warmup, 1.0, top), stable], [top]
  if config.schedule == "cosine" and last > top:
    parts[-1] = optax.cosine_decay_schedule(1.0, last - top, config.final_fraction)
  if config.schedule == "wsd" and steps > 1:
    decay = _decay_steps(config, steps)
    parts.append(optax.linear_schedule(1.0, config.final_fraction, decay))
    boundaries.append(last - decay)
  share = optax.join_schedules(parts, boundaries)
  return promoting(lambda step: peak * share(step))


def warmup_steps(config: OptimizerConfig, steps: int) -> int:
  """Returns the steps of the warm-up: the config's, or fewer if the run is too short for them.

  A run that is made shorter than its warm-up, to try it out, warms up until the final decay of wsd,
  or until its end.
  """
  room = steps - _decay_steps(config, steps) if config.schedule == "wsd" else steps
  return min(config.warmup_steps, room)


def steps_before_decay(config: OptimizerConfig, steps: int) -> int:
  """Returns the number of steps before the final decay of wsd."""
  return steps - _decay_steps(config, steps)


def _decay_steps(config: OptimizerConfig, steps: int) -> int:
  return min(max(1, round(config.decay_fraction * steps)), steps - 1)
