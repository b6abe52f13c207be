"""What the learning rate does where a run goes on with other settings or another length."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from resjax.train import optim
from resjax.train.runs.config import Run
from resjax.train.runs.history import Part

_LENGTH = "train.steps"
# Settings that decide the learning rate of a step.
_DECIDING = (
  _LENGTH, "optim.learning_rate", "optim.schedule", "optim.warmup_steps", "optim.decay_fraction",
  "optim.final_fraction",
)  # fmt: skip
_SAME = 5e-3  # a relative difference of rates that the three digits of the line may hide


def explain(before: Part, run: Run, start: int) -> Iterator[str]:
  """Yields a line where the next step has another learning rate than the last one, unexpectedly.

  The expected rate is that of the earlier settings at this step, or at their last step behind it.

  Args:
    before: the part that trained the last step.
    run: the run as it is now, with more steps than `start`.
    start: the number of steps that were trained, at least 1.
  """
  own = {f"optim.{key}": value for key, value in dataclasses.asdict(run.optim).items()}
  now = {name: (own | {_LENGTH: run.train.steps})[name] for name in _DECIDING}
  was = {name: before.settings.get(name, value) for name, value in now.items()}
  rate = _rate(run, now, start)
  try:
    last, expected = _rate(run, was, start - 1), _rate(run, was, start)
  except (TypeError, ValueError):  # settings of another release, which this one does not have
    return
  if _are_close(expected, rate) or _are_close(last, rate):
    return
  causes = [n for n in _DECIDING if not _are_close(_rate(run, now | {n: was[n]}, start), rate)]
  said = [f"config.{name} was {was[name]} and is {now[name]}" for name in causes]
  why = f", because {', '.join(said)}" if said else ""
  advice = _advice(run, was, start, last) if _LENGTH in causes else ""
  yield (
    f"learning rate: {last:.3g} in step {start} -> {rate:.3g} in step {start + 1}{why}{advice}"
  )


def _rate(run: Run, values: Mapping[str, Any], done: int) -> float:
  """Returns the rate of the step behind `done` steps, or of the last one, for deciding settings."""
  given = {n.removeprefix("optim."): value for n, value in values.items() if n != _LENGTH}
  steps = values[_LENGTH]
  schedule = optim.schedule(dataclasses.replace(run.optim, **given), steps)
  return float(schedule(min(done, steps - 1)))


def _are_close(one: float, other: float) -> bool:
  return abs(one - other) <= _SAME * max(one, other)


def _advice(run: Run, was: Mapping[str, Any], start: int, last: float) -> str:
  """Returns what goes on without a jump, where the length of a run is another one."""
  if run.optim.schedule == "cosine":
    level = f"config.optim.schedule=constant with learning_rate={last:.3g} goes on at the last rate"
    return (
      f": cosine is stretched over all steps; {f'{level}; ' * (last > 0)}a run that may become "
      "longer is best trained with schedule=wsd, whose rates before its final decay do not depend "
      "on its length"
    )
  if was["optim.schedule"] == run.optim.schedule == "wsd":
    old = dataclasses.replace(run.optim, decay_fraction=was["optim.decay_fraction"])
    steady = optim.steps_before_decay(old, was[_LENGTH])
    return (
      f": its final decay began after step {steady}; a run goes on without a jump from a "
      "checkpoint of that step or an earlier one, which config.checkpoint.keep_every keeps"
    ) * (start > steady)
  return ""
