"""AdamW with a schedule, clipping, and weight decay chosen by the path of a parameter."""

import dataclasses
import math
from collections.abc import Collection
from typing import NamedTuple

import jax
import optax

from resjax.typing import PyTree

_SCHEDULES = ("cosine", "wsd", "constant")
_DECAYED_LEAVES = ("kernel", "embedding")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
  """Settings of `config.optim`.

  Attributes:
    learning_rate: the peak.
    schedule: cosine | wsd | constant, after the warm-up.
    warmup_steps: steps of the linear warm-up, the last of which has the peak.
    decay_fraction: share of all steps in the final decay of wsd.
    final_fraction: of the peak, at the last step of cosine and wsd.
    b1: decay rate of the mean of gradients.
    b2: decay rate of the mean of squared gradients.
    eps: added to the root of the latter.
    weight_decay: times the learning rate, is taken off a decayed parameter in every step.
    clip_norm: largest global norm of a gradient; 0: no clipping.

  Raises:
    ValueError: a setting is out of range.
  """

  learning_rate: float
  schedule: str
  warmup_steps: int
  decay_fraction: float
  final_fraction: float
  b1: float
  b2: float
  eps: float
  weight_decay: float
  clip_norm: float

  def __post_init__(self):
    if self.schedule not in _SCHEDULES:
      allowed = " | ".join(_SCHEDULES)
      raise ValueError(f"config.optim.schedule is {self.schedule!r}; allowed: {allowed}")
    ranges = {
      "learning_rate": (self.learning_rate > 0, "positive"),
      "warmup_steps": (self.warmup_steps >= 0, "0 or more"),
      "decay_fraction": (0 < self.decay_fraction <= 1, "above 0, at most 1"),
      "final_fraction": (0 <= self.final_fraction <= 1, "in 0..1"),
      "b1": (0 <= self.b1 < 1, "at least 0, below 1"),
      "b2": (0 <= self.b2 < 1, "at least 0, below 1"),
      "eps": (self.eps > 0, "positive"),
      "weight_decay": (self.weight_decay >= 0, "0 or more"),
      "clip_norm": (self.clip_norm >= 0, "0 (no clipping) or more"),
    }
    for name, (fits, allowed) in ranges.items():
      value = getattr(self, name)
      if not (fits and math.isfinite(value)):
        raise ValueError(f"config.optim.{name} is {value}; it must be finite and {allowed}")


def schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
  """Learning rate of step 0..steps-1.

  Warm-up: peak · (step + 1) / warmup_steps. Then, so that the last step has the final rate:
  a half cosine (cosine); the peak and a linear decay over the last decay_fraction · steps steps
  (wsd, Hu et al. 2024, arXiv:2404.06395); the peak (constant).

  Raises:
    ValueError: warm-up and decay do not fit into the steps.
  """
  if steps < 1:
    raise ValueError(f"config.train.steps is {steps}; it must be at least 1")
  peak, warmup = config.learning_rate, config.warmup_steps
  if warmup > steps:
    raise ValueError(
      f"config.optim.warmup_steps is {warmup}, more than the {steps} of config.train.steps"
    )
  # The step that first has the peak; what follows starts there.
  top, last = max(warmup - 1, 0), steps - 1
  stable = optax.constant_schedule(peak)
  parts, boundaries = [stable], []
  if warmup > 1:
    parts, boundaries = [optax.linear_schedule(peak / warmup, peak, top), stable], [top]
  if config.schedule == "cosine" and last > top:
    parts[-1] = optax.cosine_decay_schedule(peak, last - top, config.final_fraction)
  if config.schedule == "wsd" and steps > 1:
    decay = max(1, round(config.decay_fraction * steps))
    if top + decay > last:
      raise ValueError(
        f"config.optim.warmup_steps ({warmup}) and the last {decay} steps (decay_fraction"
        f" {config.decay_fraction}) overlap in {steps} steps; lower one of them"
      )
    parts.append(optax.linear_schedule(peak, peak * config.final_fraction, decay))
    boundaries.append(last - decay)
  return optax.join_schedules(parts, boundaries)


class ParameterRow(NamedTuple):
  """One parameter, as the table of parameters shows it."""

  path: str
  shape: tuple[int, ...]
  decayed: bool


def parameter_rows(
  params: PyTree, decayed_combinator_paths: Collection[str] = ()
) -> list[ParameterRow]:
  """Path such as layers/attention/q_proj/kernel, shape and weight decay of every parameter.

  Decayed are the parameters named `kernel` or `embedding` that lie under no `combinator`, and
  those that `decayed_combinator_paths` names: norm scales and biases are not, whatever their
  number of axes in a stack of layers.

  Args:
    params: nested dicts of arrays.
    decayed_combinator_paths: full paths of parameters of a combinator, or of folders of them.

  Raises:
    ValueError: one of `decayed_combinator_paths` names no parameter.
  """
  leaves = jax.tree_util.tree_leaves_with_path(params)
  paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
  for folder in decayed_combinator_paths:
    if not any(_lies_in(path, folder) for path in paths):
      raise ValueError(f"decayed_combinator_paths: {folder!r} names none of {', '.join(paths)}")
  return [
    ParameterRow(path, tuple(leaf.shape), _is_decayed(path, decayed_combinator_paths))
    for path, (_, leaf) in zip(paths, leaves, strict=True)
  ]


def decay_mask(params: PyTree, decayed_combinator_paths: Collection[str] = ()) -> PyTree:
  """`parameter_rows(...)[...].decayed`, in the structure of `params`."""
  rows = parameter_rows(params, decayed_combinator_paths)
  return jax.tree.unflatten(jax.tree.structure(params), [row.decayed for row in rows])


def make_optimizer(
  config: OptimizerConfig, steps: int, decayed_combinator_paths: Collection[str] = ()
) -> optax.GradientTransformation:
  """Clipping by global norm, then AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101).

  θ ← θ - lr · (m̂ / (√v̂ + eps) + weight_decay · θ), the last term for decayed parameters only.

  Raises:
    ValueError: as `schedule`; and, from the transformation's `init`, as `parameter_rows`.
  """
  paths = tuple(decayed_combinator_paths)
  adamw = optax.adamw(
    schedule(config, steps),
    b1=config.b1,
    b2=config.b2,
    eps=config.eps,
    weight_decay=config.weight_decay,
    mask=lambda params: decay_mask(params, paths),
  )
  # Always two parts: a run that resumes may turn clipping on or off.
  clip = optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
  return optax.chain(clip, adamw)


def _is_decayed(path: str, decayed_combinator_paths: Collection[str]) -> bool:
  *folders, name = path.split("/")
  if "combinator" in folders:
    return any(_lies_in(path, folder) for folder in decayed_combinator_paths)
  return name in _DECAYED_LEAVES


def _lies_in(path: str, folder: str) -> bool:
  return path == folder or path.startswith(f"{folder}/")
