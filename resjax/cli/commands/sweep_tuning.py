"""A sweep as the command line describes it, and the tuning of its arms."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from resjax.base import Location
from resjax.cli.commands import sweep_runs
from resjax.study.sweeps import Plan, SweepRun, expand, results, tuning
from resjax.study.sweeps import plan as plans
from resjax.train.runs import workdir


@dataclasses.dataclass
class Sweep:
  """The sweep of a command line.

  Attributes:
    config: the config that all runs share.
    path: the file of the sweep.
    arms: the overrides of each arm by name, the baseline first.
    curves: the settings of the plot's axes, see `resjax.study.sweeps.table.figure`.
    plan: its plan; None: it has no seeds, so that single runs are compared.
  """

  config: ConfigDict
  path: str
  arms: Mapping[str, dict[str, Any]]
  curves: tuple[str, str] | None
  plan: Plan | None = None

  @property
  def folder(self) -> Location:
    """The folder of the sweep."""
    return workdir.place(self.config.workdir)

  def runs(self) -> list[SweepRun]:
    """Returns all runs except for tuning, each arm with the values that were tuned for it."""
    tuned: Mapping[str, Mapping[str, float]] = self.plan.tuned if self.plan else {}
    arms = [(arm, {**values, **tuned.get(arm, {})}) for arm, values in self.arms.items()]
    return expand(self.config, arms, self.plan.seeds if self.plan else ())


def begun(sweep: Sweep) -> bool:
  """Returns whether there are runs that tune an arm."""
  return any((sweep.folder / arm / tuning.FOLDER).exists() for arm in sweep.arms)


def tune(sweep: Sweep, arms: Sequence[str], console: Console | None) -> list[SweepRun]:
  """Tunes arms as the plan of a sweep says, and writes into the plan what was found.

  Args:
    sweep: the sweep, whose plan is replaced.
    arms: the names of the arms to tune; those that are tuned stay as they are.
    console: where to print; None: nothing is run.

  Returns:
    The runs that are needed next; none if the arms are tuned.

  Raises:
    ValueError: a run cannot be built, or the grid of an arm ends before its best value.
  """
  assert sweep.plan is not None
  rule, failed = sweep.plan.questions.tuning, set[str]()
  open_arms = [arm for arm in arms if arm not in sweep.plan.tuned]
  if rule is None or not open_arms:
    return []

  def score(run: SweepRun) -> float | None:
    return _score(run, sweep.plan, run.name in failed)

  while True:
    states = {
      arm: tuning.state(sweep.config, arm, sweep.arms[arm], rule, score) for arm in open_arms
    }
    missing = [run for state in states.values() for run in state.missing]
    for name, error in sweep_runs.check(missing).items():
      raise ValueError(f"run {name!r}: {error}")
    if not missing:
      break
    if console is None:
      return missing
    failed |= sweep_runs.run_all(missing, console).keys()
  found = {arm: dict(state.values) for arm, state in states.items()}
  # Another process may have tuned other arms of the sweep meanwhile.
  stored = plans.read(sweep.folder) or sweep.plan
  sweep.plan = dataclasses.replace(stored, tuned={**stored.tuned, **found})
  plans.write(sweep.folder, sweep.plan)
  return []


def _score(run: SweepRun, plan: Plan | None, failed: bool) -> float | None:
  assert plan is not None
  found = sweep_runs.collect(run, metric=plan.questions.key)
  if failed or found.status == results.DIVERGED:
    return math.inf
  if found.status != results.DONE or found.value is None:
    return None
  return found.value if plan.questions.better == "lower" else -found.value
