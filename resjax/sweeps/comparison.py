"""What a sweep shows: each contrast with its interval and a verdict, and what else to know."""

import dataclasses
import statistics
from collections.abc import Sequence

from resjax import typed_json
from resjax.locations import Location
from resjax.statistics import Contrast, Difference, compare, detectable
from resjax.sweeps.plan import Plan, exploratory
from resjax.sweeps.results import DIVERGED, DONE, Result

BETTER, WORSE, EQUAL, UNDECIDED = "better", "worse", "equal", "undecided"
_ERROR = 0.05  # the rate of false findings


@dataclasses.dataclass(frozen=True)
class Row:
  """What was found about one contrast.

  Attributes:
    contrast: the contrast.
    mean: the mean of the arm over its finished seeds; None if none is finished.
    seeds: how many of its seeds are finished.
    margin: the difference that is too small to matter, in the unit of the metric.
    difference: the paired difference; None if a run diverged, or no seed has both arms.
    verdict: `better` or `worse` (adjusted p < 0.05), `equal` within the margin (two one-sided
      tests at 0.05), `undecided`, or `diverged`: the arm is not ranked.
    parameters: the number of parameters of the arm.
    memory_ratio: the memory of the arm's training step over that of the reference.
    flops_ratio: the training FLOPs per token over those of the reference.
    speed_ratio: the tokens per second over those of the reference; None unless the runs had the
      machine for themselves, and the same devices.
  """

  contrast: Contrast
  mean: float | None
  seeds: int
  margin: float | None
  difference: Difference | None
  verdict: str
  parameters: int | None
  memory_ratio: float | None
  flops_ratio: float | None
  speed_ratio: float | None


@dataclasses.dataclass(frozen=True)
class Comparison:
  """What a sweep shows.

  Attributes:
    metric: the name of the metric in the records.
    better: which values of it are better, `lower` or `higher`.
    seeds: the planned seeds.
    exploratory: why its findings need a test on new seeds; none: the plan came first.
    planned: the planned contrasts.
    afterwards: the other arms against the baseline, to be tested on new seeds.
    deviations: where the runs are not those of the plan.
    tuned: for each arm the values that tuning found.
    deviation: the pooled standard deviation of a paired difference; None with one seed.
    detectable: the smallest difference that such a sweep finds in 80 of 100 cases: tested alone,
      and in the strictest step of Holm's test of all planned contrasts.
  """

  metric: str
  better: str
  seeds: tuple[int, ...]
  exploratory: tuple[str, ...]
  planned: tuple[Row, ...]
  afterwards: tuple[Row, ...]
  deviations: tuple[str, ...]
  tuned: dict[str, dict[str, float]]
  deviation: float | None
  detectable: tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class _File:
  """The part of `results.json` that holds a comparison."""

  comparison: Comparison


def read(path: Location) -> Comparison:
  """Returns the comparison that a `results.json` holds.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it holds none, or something else.
  """
  return typed_json.read(path, _File).comparison


def make(plan: Plan, results: Sequence[Result], *, alone: bool = False) -> Comparison:
  """Returns what the runs of a sweep show.

  Args:
    plan: the plan of the sweep.
    results: the results of its runs.
    alone: whether no other program used the machines of the runs, so that their speeds count.
  """
  sides = _Sides(plan, results, alone)
  named = {name for pair in plan.questions.contrasts for name in pair}
  others = [arm for arm in plan.arms if arm not in named | {plan.questions.baseline}]
  planned = sides.rows(plan.contrasts)
  starts = {r.name: r.begun for r in results if r.begun is not None}
  known = [r.difference for r in planned if r.difference and not r.difference.own]
  deviation = next((d.deviation for d in known), None)
  return Comparison(
    metric=plan.questions.key,
    better=plan.questions.better,
    seeds=plan.seeds,
    exploratory=tuple(exploratory(plan, starts)),
    planned=planned,
    afterwards=sides.rows([Contrast(arm, plan.questions.baseline) for arm in others]),
    deviations=tuple(_deviations(plan, results)),
    tuned=plan.tuned,
    deviation=deviation,
    detectable=_seen(known[0], len(plan.contrasts)) if known else None,
  )


def expected(plan: Plan, spread: float) -> tuple[float, float]:
  """Returns the smallest differences that a planned sweep can show, see `Comparison.detectable`.

  Pairing is taken to gain nothing, so that a difference deviates √2 times as much as a run.

  Args:
    plan: the plan, with two seeds at least.
    spread: the standard deviation of the metric over seeds.
  """
  return _detectable(2**0.5 * spread, len(plan.seeds), len(plan.contrasts))


def _detectable(deviation: float, seeds: int, contrasts: int) -> tuple[float, float]:
  freedom = contrasts * (seeds - 1)
  alone, strictest = (detectable(seeds, freedom, contrasts=k) for k in (1, contrasts))
  return deviation * alone, deviation * strictest


def _seen(difference: Difference, contrasts: int) -> tuple[float, float] | None:
  if difference.deviation is None:
    return None
  n, freedom = len(difference.seeds), difference.freedom
  alone, strictest = (detectable(n, freedom, contrasts=k) for k in (1, contrasts))
  return difference.deviation * alone, difference.deviation * strictest


class _Sides:
  """The arms of a sweep, of which rows compare two.

  Args:
    plan: the plan of the sweep.
    results: the results of its runs.
    alone: whether the speeds of runs count.
  """

  def __init__(self, plan: Plan, results: Sequence[Result], alone: bool):
    self._plan, self._alone = plan, alone
    self._runs: dict[str, list[Result]] = {arm: [] for arm in plan.arms}
    for r in results:
      if r.seed in plan.seeds:
        self._runs[r.arm].append(r)
    steps = {arm: planned.steps for arm, planned in plan.arms.items()}
    self._values = {
      arm: {
        r.seed: r.value
        for r in runs
        if r.status == DONE and r.steps == steps[arm] and r.value is not None and r.seed is not None
      }
      for arm, runs in self._runs.items()
    }

  def rows(self, contrasts: Sequence[Contrast]) -> tuple[Row, ...]:
    """Returns the rows of contrasts that are tested together."""
    ranked = [c for c in contrasts if not self._diverged(c) and self._is_paired(c)]
    margins = {c: self._margin(c) for c in ranked}
    found: dict[Contrast, Difference] = {}
    if ranked:
      found = {d.contrast: d for d in compare(self._values, ranked, margins)}
    return tuple(self._row(c, found.get(c), margins.get(c)) for c in contrasts)

  def _diverged(self, contrast: Contrast) -> bool:
    both = self._runs[contrast.arm] + self._runs[contrast.reference]
    return any(r.status == DIVERGED for r in both)

  def _is_paired(self, contrast: Contrast) -> bool:
    return bool(self._values[contrast.arm].keys() & self._values[contrast.reference].keys())

  def _margin(self, contrast: Contrast) -> float:
    mean = statistics.fmean(self._values[contrast.reference].values())
    return self._plan.questions.margin * abs(mean)

  def _row(self, contrast: Contrast, difference: Difference | None, margin: float | None) -> Row:
    values = list(self._values[contrast.arm].values())
    diverged = self._diverged(contrast)
    better = self._plan.questions.better
    ratio = {
      name: self._ratio(contrast, name)
      for name in ("step_bytes", "flops_per_token", "tokens_per_second")
    }
    return Row(
      contrast=contrast,
      mean=statistics.fmean(values) if values else None,
      seeds=len(values),
      margin=margin,
      difference=difference,
      verdict=DIVERGED if diverged else _verdict(difference, better),
      parameters=next(
        (r.num_parameters for r in self._runs[contrast.arm] if r.num_parameters), None
      ),
      memory_ratio=ratio["step_bytes"],
      flops_ratio=ratio["flops_per_token"],
      speed_ratio=ratio["tokens_per_second"] if self._alone and self._same(contrast) else None,
    )

  def _ratio(self, contrast: Contrast, name: str) -> float | None:
    sides = []
    for arm in (contrast.arm, contrast.reference):
      known = [getattr(r, name) for r in self._runs[arm] if getattr(r, name)]
      if not known:
        return None
      sides.append(statistics.median(known))
    return sides[0] / sides[1]

  def _same(self, contrast: Contrast) -> bool:
    both = self._runs[contrast.arm] + self._runs[contrast.reference]
    return len({r.devices for r in both if r.tokens_per_second}) == 1


def _verdict(difference: Difference | None, better: str) -> str:
  if difference is None or difference.holm is None or difference.equality_p is None:
    return UNDECIDED
  if difference.holm < _ERROR:
    return BETTER if (difference.mean < 0) == (better == "lower") else WORSE
  return EQUAL if difference.equality_p < _ERROR else UNDECIDED


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
