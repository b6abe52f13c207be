"""The schedule of the learning rate."""

import optax

from resjax.optim.config import OptimizerConfig
from resjax.typing import Array


def schedule(
  config: OptimizerConfig, steps: int, peak: float | Array | None = None
) -> optax.Schedule:
  """Returns the learning rate as a function of the number of finished steps, 0..steps-1.

  During the warm-up it is peak · (step + 1) / warmup_steps. Then follows, so that the last step has
  the final rate: a half cosine (cosine); the peak and a linear decay over the last
  decay_fraction · steps steps (wsd, Hu et al. 2024, arXiv:2404.06395); or the peak (constant).

  Args:
    config: the settings of the optimizer.
    steps: the number of steps of the run.
    peak: the peak, which may be traced; default: that of the config.

  Raises:
    ValueError: the warm-up and the decay do not fit into the steps.
  """
  if steps < 1:
    raise ValueError(f"config.train.steps is {steps}; it must be at least 1")
  warmup, peak = config.warmup_steps, config.learning_rate if peak is None else peak
  if warmup > steps:
    raise ValueError(
      f"config.optim.warmup_steps is {warmup}, more than the {steps} of config.train.steps"
    )
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
    decay = min(max(1, round(config.decay_fraction * steps)), last)
    if top + decay > last:
      raise ValueError(
        f"config.optim.warmup_steps ({warmup}) and the last {decay} steps (decay_fraction"
        f" {config.decay_fraction}) overlap in {steps} steps; lower one of them"
      )
    parts.append(optax.linear_schedule(1.0, config.final_fraction, decay))
    boundaries.append(last - decay)
  share = optax.join_schedules(parts, boundaries)
  return lambda step: peak * share(step)
