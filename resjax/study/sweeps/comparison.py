"""What a sweep shows: each contrast with its interval and a verdict, and what else to know."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from resjax.study.statistics import Contrast, Difference, compare, detectable
from resjax.study.sweeps.plan import Plan, exploratory
from resjax.study.sweeps.results import DIVERGED, DONE, Result

BETTER, WORSE, EQUAL, UNDECIDED = "better", "worse", "equal", "undecided"
_ERROR = 0.05  # the rate of false findings


@dataclasses.dataclass(frozen=True)
class Arm:
  """The results and costs of the finished runs of an arm.

  Attributes:
    seeds: how many seeds are finished.
    mean: the mean of the metric over them; None if there is none.
    deviation: the standard deviation of the metric over them; None with fewer than two.
    diverged: whether a run diverged, so that the arm is not ranked.
    parameters: the number of parameters.
    step_bytes: the memory of one device that the training step takes.
    flops_per_token: the floating-point operations of training per token.
    tokens_per_second: the median over seeds; None unless the runs had the machine for themselves.
    devices: the kinds of device that its runs had.
  """

  seeds: int
  mean: float | None
  deviation: float | None
  diverged: bool
  parameters: float | None
  step_bytes: float | None
  flops_per_token: float | None
  tokens_per_second: float | None
  devices: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Row:
  """What was found about one contrast.

  Attributes:
    contrast: the contrast.
    margin: the difference that is too small to matter, in the unit of the metric.
    difference: the paired difference; None if a run diverged, or no seed has both arms.
    detectable: the smallest difference that so many seeds with such a deviation find in 80 of 100
      cases: tested alone, and in the strictest step of Holm's test; None with one seed.
    verdict: `better` or `worse` (adjusted p < 0.05), `equal` within the margin (two one-sided
      tests, adjusted p < 0.05), `undecided`, or `diverged`: the arm is not ranked.
    memory_ratio: the memory of the arm's training step over that of the reference.
    flops_ratio: the training FLOPs per token, divided by the reference's.
    speed_ratio: the tokens per second, divided by the reference's; None unless both had the same
      devices for themselves.
  """

  contrast: Contrast
  margin: float | None
  difference: Difference | None
  detectable: tuple[float, float] | None
  verdict: str
  memory_ratio: float | None
  flops_ratio: float | None
  speed_ratio: float | None

  @property
  def is_small(self) -> bool:
    """Whether the difference is within the margin for sure, though another than 0."""
    found = self.difference.equality_holm if self.difference else None
    return self.verdict in (BETTER, WORSE) and found is not None and found < _ERROR


@dataclasses.dataclass(frozen=True)
class Comparison:
  """What a sweep shows.

  Attributes:
    metric: the name of the metric in the records.
    better: which values of it are better, `lower` or `higher`.
    seeds: the planned seeds.
    arms: what each arm reached and cost, the baseline first.
    exploratory: why its findings need a test on new seeds; none: the plan came first.
    planned: the planned contrasts.
    afterwards: the other arms against the baseline, to be tested on new seeds.
    deviations: where the runs deviate from the plan.
    tuned: for each arm the values that tuning found.
  """

  metric: str
  better: str
  seeds: tuple[int, ...]
  arms: dict[str, Arm]
  exploratory: tuple[str, ...]
  planned: tuple[Row, ...]
  afterwards: tuple[Row, ...]
  deviations: tuple[str, ...]
  tuned: dict[str, dict[str, float]]


def make(plan: Plan, results: Sequence[Result], *, alone: bool = False) -> Comparison:
  """Compares the arms of a sweep by its results.

  Args:
    plan: the plan of the sweep.
    results: the results of its runs.
    alone: whether no other program used the machines of the runs, so that their speeds count.
  """
  sides = _Sides(plan, results, alone)
  named = {name for pair in plan.questions.contrasts for name in pair}
  others = [arm for arm in plan.arms if arm not in named | {plan.questions.baseline}]
  starts = {r.name: r.begun for r in results if r.begun is not None}
  return Comparison(
    metric=plan.questions.key,
    better=plan.questions.better,
    seeds=plan.seeds,
    arms=sides.arms,
    exploratory=tuple(exploratory(plan, starts)),
    planned=sides.rows(plan.contrasts),
    afterwards=sides.rows([Contrast(arm, plan.questions.baseline) for arm in others]),
    deviations=tuple(_deviations(plan, results)),
    tuned=plan.tuned,
  )


def expected(plan: Plan, spread: float) -> dict[int, tuple[float, float]]:
  """Returns the smallest differences that a planned sweep can show, see `Row.detectable`.

  They are given by the number of seeds: that of the plan, and larger ones that are often chosen.
  Pairing is taken to gain nothing, so that a difference deviates √2 times as much as a run.

  Args:
    plan: the plan, with two seeds at least.
    spread: the standard deviation of the metric over seeds.
  """
  counts = sorted({len(plan.seeds), *(n for n in (5, 10) if n > len(plan.seeds))})
  return {n: _detectable(2**0.5 * spread, n, len(plan.questions.contrasts)) for n in counts}


def _detectable(deviation: float, seeds: int, contrasts: int) -> tuple[float, float]:
  alone, strictest = (detectable(seeds, contrasts=k) for k in (1, contrasts))
  return deviation * alone, deviation * strictest


class _Sides:
  """The arms of a sweep, of which rows compare two.

  Args:
    plan: the plan of the sweep.
    results: the results of its runs.
    alone: whether the speeds of runs count.

  Attributes:
    arms: what each arm reached and cost.
  """

  def __init__(self, plan: Plan, results: Sequence[Result], alone: bool):
    self._plan = plan
    runs: dict[str, list[Result]] = {arm: [] for arm in plan.arms}
    for r in results:
      runs[r.arm].append(r)
    self._values = {arm: _values(runs[arm], planned.steps) for arm, planned in plan.arms.items()}
    self.arms = {arm: _arm(runs[arm], self._values[arm], alone) for arm in plan.arms}

  def rows(self, contrasts: Sequence[Contrast]) -> tuple[Row, ...]:
    """Returns the rows of contrasts that are tested together."""
    margins = {c: self._margin(c) for c in contrasts if self._is_ranked(c)}
    found = {d.contrast: d for d in compare(self._values, list(margins), margins)}
    tested = sum(d.p is not None for d in found.values())
    return tuple(self._row(c, margins.get(c), found.get(c), tested) for c in contrasts)

  def _is_ranked(self, contrast: Contrast) -> bool:
    paired = self._values[contrast.arm].keys() & self._values[contrast.reference].keys()
    return bool(paired) and not self._diverged(contrast)

  def _diverged(self, contrast: Contrast) -> bool:
    return self.arms[contrast.arm].diverged or self.arms[contrast.reference].diverged

  def _margin(self, contrast: Contrast) -> float:
    mean = statistics.fmean(self._values[contrast.reference].values())
    return self._plan.questions.margin * abs(mean)

  def _row(
    self, contrast: Contrast, margin: float | None, difference: Difference | None, tested: int
  ) -> Row:
    arm, reference = self.arms[contrast.arm], self.arms[contrast.reference]
    same = len({*arm.devices, *reference.devices}) == 1
    verdict, effects = _verdict(difference, self._plan.questions.better), None
    if difference is not None and difference.deviation is not None:
      effects = _detectable(difference.deviation, len(difference.seeds), tested)
    return Row(
      contrast=contrast,
      margin=margin,
      difference=difference,
      detectable=effects,
      verdict=DIVERGED if self._diverged(contrast) else verdict,
      memory_ratio=_ratio(arm.step_bytes, reference.step_bytes) if same else None,
      flops_ratio=_ratio(arm.flops_per_token, reference.flops_per_token),
      speed_ratio=_ratio(arm.tokens_per_second, reference.tokens_per_second) if same else None,
    )


def _values(runs: Sequence[Result], steps: int) -> dict[int, float]:
  """Returns the metric of an arm's finished runs by seed."""
  return {
    r.seed: r.value
    for r in runs
    if r.status == DONE and r.steps == steps and r.value is not None and r.seed is not None
  }


def _arm(runs: Sequence[Result], values: Mapping[int, float], alone: bool) -> Arm:
  found = list(values.values())

  def median(name: str) -> float | None:
    known = [getattr(r, name) for r in runs if getattr(r, name) is not None]
    return statistics.median(known) if known else None

  return Arm(
    seeds=len(found),
    mean=statistics.fmean(found) if found else None,
    deviation=statistics.stdev(found) if len(found) > 1 else None,
    diverged=any(r.status == DIVERGED for r in runs),
    parameters=median("num_parameters"),
    step_bytes=median("step_bytes"),
    flops_per_token=median("flops_per_token"),
    tokens_per_second=median("tokens_per_second") if alone else None,
    devices=tuple(sorted({r.devices for r in runs if r.devices})),
  )


def _ratio(value: float | None, reference: float | None) -> float | None:
  return value / reference if value is not None and reference else None


def _verdict(difference: Difference | None, better: str) -> str:
  if difference is None or difference.holm is None or difference.equality_holm is None:
    return UNDECIDED
  if difference.holm < _ERROR:
    return BETTER if (difference.mean < 0) == (better == "lower") else WORSE
  return EQUAL if difference.equality_holm < _ERROR else UNDECIDED


def _deviations(plan: Plan, results: Sequence[Result]) -> list[str]:
  """Returns in words where runs are missing, shorter, or of other code than that of the plan."""
  lines = []
  for arm, planned in plan.arms.items():
    runs = [r for r in results if r.arm == arm]
    missing = sorted(set(plan.seeds) - {r.seed for r in runs if r.status == DONE})
    if missing:
      why = {r.seed: f" ({r.status} at step {r.step})" for r in runs if r.step}
      shown = ", ".join(f"{seed}{why.get(seed, '')}" for seed in missing)
      lines.append(f"{arm}: {'seed' if len(missing) == 1 else 'seeds'} {shown} missing")
    steps = sorted({r.steps for r in runs if r.status == DONE} - {planned.steps})
    if steps:
      lines.append(f"{arm}: {', '.join(map(str, steps))} steps, planned were {planned.steps}")
  for code in sorted({r.code for r in results if r.code} - {plan.code}):
    names = [r.name for r in results if r.code == code]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    lines.append(f"{names[0]}{more}: other code, {code[:12]}, planned was {_short(plan.code)}")
  return lines


def _short(code: str | None) -> str:
  return code[:12] if code else "unknown"
