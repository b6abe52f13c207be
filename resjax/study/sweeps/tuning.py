"""Learning rates for each arm: a grid of factors, on fewer tokens, with a seed of its own.

All arms get the same grid and the same number of runs before any of them moves its own. Settings
are tuned one after the other, and the next one starts from the best value of the one before.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from resjax.study.sweeps.plan import Tuning
from resjax.study.sweeps.runs import SweepRun, make_run

FOLDER = "tuning"  # of the runs that tune an arm, in its folder
# Returns what a run reached, lower being better: infinity if it diverged, None if it is not done.
Score = Callable[[SweepRun], float | None]


@dataclasses.dataclass(frozen=True)
class State:
  """How far the tuning of one arm is.

  Attributes:
    values: the value of each setting that is known so far; of all settings if nothing is missing.
    missing: the runs that are needed next; none if the arm is tuned.
    curves: for each setting that was reached the score of each value, upwards.
  """

  values: Mapping[str, float]
  missing: tuple[SweepRun, ...]
  curves: Mapping[str, Mapping[float, float]]


def state(
  config: ConfigDict, arm: str, overrides: Mapping[str, Any], tuning: Tuning, score: Score
) -> State:
  """Returns the best values of an arm, or the runs that are needed to know them.

  Args:
    config: the config that all arms share.
    arm: the name of the arm.
    overrides: its overrides.
    tuning: the grid.
    score: returns the score of a run.

  Raises:
    ValueError: a setting is no positive number, no run gave a score, or the best factor is still
      the first or the last one after the most moves.
  """
  values = _start(config, arm, overrides, tuning)
  curves: dict[str, dict[float, float]] = {}
  for setting, factors in tuning.settings.items():
    centre = values[setting]
    grid = [_rounded(centre * factor) for factor in factors]
    for moves in range(tuning.most_moves + 1):
      trials = {value: values | {setting: value} for value in grid}
      runs = {v: _run(config, arm, overrides, tuning, trial) for v, trial in trials.items()}
      scores = {value: score(run) for value, run in runs.items()}
      missing = tuple(run for v, run in runs.items() if scores[v] is None)
      if missing:
        return State(values, missing, curves)
      known = {v: found for v, found in scores.items() if found is not None}
      best = _best(known, centre)
      if best is None:
        raise ValueError(
          f"arm {arm!r}: every {setting} of {grid} diverged or failed; set a lower one"
        )
      if best not in (grid[0], grid[-1]):
        curves[setting], values[setting] = known, best
        break
      if moves == tuning.most_moves:
        raise ValueError(
          f"arm {arm!r}: the best {setting} of {grid} is {best:g}, at the edge after {moves} moves "
          "of the grid; set another value in its config, or raise PLAN.tuning.most_moves"
        )
      grid = _moved(grid, best)
  return State(values, (), curves)


def _start(
  config: ConfigDict, arm: str, overrides: Mapping[str, Any], tuning: Tuning
) -> dict[str, float]:
  settings = make_run(config, arm, arm, None, overrides).config
  values: dict[str, float] = {}
  for setting in tuning.settings:
    part: Any = settings
    for key in setting.split("."):
      part = part[key] if isinstance(part, ConfigDict) and key in part else None
    if isinstance(part, bool) or not isinstance(part, int | float) or part <= 0:
      raise ValueError(f"PLAN.tuning.settings: {setting} of arm {arm!r} is {part!r}: no number > 0")
    values[setting] = float(part)
  return values


def _run(
  config: ConfigDict,
  arm: str,
  overrides: Mapping[str, Any],
  tuning: Tuning,
  values: Mapping[str, float],
) -> SweepRun:
  names = "-".join(f"{key.rpartition('.')[2]}_{value:g}" for key, value in values.items())
  own = {"train.steps": tuning.steps, "seed": tuning.seed}
  settings = {**overrides, **tuning.overrides, **values, **own}
  return make_run(config, f"{arm}/{FOLDER}/{names}", arm, tuning.seed, settings)


def _best(scores: Mapping[float, float], centre: float) -> float | None:
  """Returns the value with the best score; of equal ones that nearest to the centre."""
  finite = {value: score for value, score in scores.items() if math.isfinite(score)}
  if not finite:
    return None
  return min(finite, key=lambda value: (finite[value], abs(math.log(value / centre))))


def _moved(grid: Sequence[float], best: float) -> list[float]:
  """Returns the grid with one more value beyond its best one, at the same ratio."""
  if best == grid[0]:
    return [_rounded(grid[0] ** 2 / grid[1]), *grid]
  return [*grid, _rounded(grid[-1] ** 2 / grid[-2])]


def _rounded(value: float) -> float:
  return float(f"{value:.3g}")
