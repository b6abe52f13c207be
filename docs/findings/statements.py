"""Figures of statements that files beside this one have whole: values and questions.

docs/findings/NAME.json holds `values` (for each arm, such as a model, its value by seed or text),
`contrasts` (pairs of arms whose values belong together, tested as one family), `unit` (what stands
behind a mean), `where` (of what the statement holds) and `command` (what gives the values). A page
has `<!--NAME.ARM-->` for a mean, `<!--NAME.ARM-OTHER-->` for a paired difference,
`<!--NAME.where-->` and `<!--NAME.command-->`.

docs/findings/NAME/ may also be a sweep, with its plan.json and results.json. Then a page has
`<!--NAME.ARM-->` for the difference of an arm from the baseline, `<!--NAME.ARM-OTHER-->` for one
from another reference, either with `.verdict` behind it, `<!--NAME.ARM.SETTING-->` for what was
tuned, and `<!--NAME.margin-->`; of its models, where models.json is there, what
docs/findings/swept_models.py says.

What several sweeps say together, such as whether the order of designs is the same in two of them,
is for modules beside this one, which have their tables and their verdicts from here.
"""

import dataclasses
import itertools
import pathlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from docs.findings import swept_models, words
from resjax.base import typed_json
from resjax.study.statistics import Contrast, compare, holm
from resjax.study.sweeps import Result, comparison, plan, results, table

FOLDER = pathlib.Path(__file__).parent
CONFIRMED, REFUTED, UNDECIDED = "confirmed", "refuted", "undecided"
Values = dict[str, dict[int, float]]


@dataclasses.dataclass(frozen=True)
class Statement:
  """The raw data of a statement, see above."""

  values: dict[str, dict[str, float]]
  where: str
  command: str
  contrasts: tuple[tuple[str, str], ...] = ()
  unit: str = ""

  def numbers(self) -> dict[str, str]:
    """Returns what a page may say of it, by name."""
    found = {"where": self.where, "command": f"`{self.command}`"}
    for arm, by in self.values.items():
      found[arm] = words.mean([*by.values()], self.unit)
    for one in compare(self.values, [Contrast(*pair) for pair in self.contrasts]):
      found[f"{one.contrast.arm}-{one.contrast.reference}"] = words.difference(one)
    return found


def numbers() -> dict[str, dict[str, str]]:
  """Returns the figures of every statement and every sweep, by the name of its file or folder."""
  files = {
    path.stem: typed_json.read(path, Statement).numbers() for path in sorted(FOLDER.glob("*.json"))
  }
  plans = sorted(FOLDER.glob("*/plan.json"))
  return files | {path.parent.name: of_sweep(path.parent) for path in plans}


def of_sweep(folder: pathlib.Path) -> dict[str, str]:
  """Returns what the contrasts of a sweep show, computed from its plan and its runs."""
  planned = plan.read(folder)
  assert planned is not None
  shown = comparison.make(planned, table.read(folder).runs)
  found: dict[str, str] = {}
  for row in (*shown.planned, *shown.afterwards):
    other = row.contrast.reference
    name = row.contrast.arm + f"-{other}" * (other != planned.questions.baseline)
    found[f"{name}.verdict"] = row.verdict + ", within the margin" * row.is_small
    if row.difference is not None and row.margin is not None:
      found[name] = words.difference(row.difference)
      found["margin"] = f"{row.margin:.2g}"
  for arm, values in planned.tuned.items():
    found |= {f"{arm}.{name.rpartition('.')[2]}": f"{value:g}" for name, value in values.items()}
  has_models = (folder / swept_models.FILE_NAME).exists()
  return found | (swept_models.numbers(folder) if has_models else {})


def by_arm(runs: Sequence[Result]) -> Values:
  """Returns the metric of each arm by seed."""
  values: Values = {}
  for run in runs:
    if run.value is None:
      continue
    assert run.seed is not None
    values.setdefault(run.arm, {})[run.seed] = run.value
  return values


def ranked(folder: pathlib.Path) -> Values:
  """Returns the metric by arm and seed of all arms of a sweep of which no run diverged."""
  runs = table.read(folder).runs
  diverged = {run.arm for run in runs if run.status == results.DIVERGED}
  return by_arm([r for r in runs if r.status == results.DONE and r.arm not in diverged])


def unfinished(folder: pathlib.Path, arms: Iterable[str]) -> list[str]:
  """Returns the arms of a kept sweep that lack planned seeds, and of which no run diverged.

  Args:
    folder: the sweep, which may not be there yet.
    arms: the arms that it has by its file; a piece that was kept may lack some.
  """
  planned = plan.read(folder)
  if planned is None:
    return list(arms)
  runs = table.read(folder).runs
  diverged = {run.arm for run in runs if run.status == results.DIVERGED}
  done = by_arm([run for run in runs if run.status == results.DONE])
  seeds = {*planned.seeds}
  return [arm for arm in arms if arm not in diverged and not {*done.get(arm, ())} >= seeds]


def order(first: Values, second: Values, margin: float) -> dict[str, str]:
  """Returns whether the order of arms differs between two sweeps, and the pairs for which it does.

  Two arms are reversed if one is ahead in the first sweep and the other in the second: p is the
  larger one of the two paired tests, 1 where the means have one sign, after Holm over all pairs.
  That no order changes is found if each pair of means that is reversed differs by less than the
  margin in one of the sweeps for sure: p is twice the smaller one of the two tests of equality.

  Args:
    first: the values of one sweep.
    second: the values of the other one; arms that only one of them has are left out.
    margin: a difference that is too small to matter, as a share of the reference's mean.
  """
  pairs = [Contrast(*pair) for pair in itertools.combinations([a for a in first if a in second], 2)]
  sweeps = [compare(values, pairs, _margins(values, pairs, margin)) for values in (first, second)]
  both = list(zip(*sweeps, strict=True))
  turned = [a.mean * b.mean < 0 for a, b in both]
  equality = [[1.0 if x.equality_p is None else x.equality_p for x in found] for found in both]
  small = [2 * min(found) < 0.05 for found in equality]
  p = [max(a.p or 0, b.p or 0) if turn else 1.0 for (a, b), turn in zip(both, turned, strict=True)]
  known = all(one.p is not None for found in both for one in found)
  sure = [pair for pair, adjusted in zip(pairs, holm(p), strict=True) if known and adjusted < 0.05]
  none = bool(pairs) and all(equal or not turn for equal, turn in zip(small, turned, strict=True))
  found = CONFIRMED if sure else REFUTED if none else UNDECIDED
  shown = ", ".join(f"`{pair.arm}` and `{pair.reference}`" for pair in sure)
  return {
    "order": found,
    "order.pairs": shown or "none",
    "order.counts": f"{sum(turned)} of {len(pairs)} pairs of means, {len(sure)} for sure",
  }


def _margins(values: Values, pairs: Sequence[Contrast], share: float) -> dict[Contrast, float]:
  return {pair: share * statistics.fmean(values[pair.reference].values()) for pair in pairs}


def losses_table(sweeps: Mapping[str, Values]) -> str:
  """Returns the mean and interval of each arm, with a column for each sweep."""

  def shown(values: Mapping[int, float]) -> str:
    return words.mean([*values.values()]).partition(",")[0] if len(values) > 1 else ""

  return _table(sweeps, shown)


def rates_table(folders: Mapping[str, pathlib.Path]) -> str:
  """Returns what was tuned for each arm, one setting, with a column for each sweep."""
  plans = {heading: plan.read(folder) for heading, folder in folders.items()}
  tuned = {heading: made.tuned for heading, made in plans.items() if made is not None}
  return _table(tuned, lambda by: f"{next(iter(by.values())):g}")


def _table(columns: Mapping[str, Mapping[str, Any]], show: Callable[[Any], str]) -> str:
  lines = [f"| design | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
  for arm in dict.fromkeys(arm for by in columns.values() for arm in by):
    cells = (show(by[arm]) if arm in by else "" for by in columns.values())
    lines.append(f"| `{arm}` | {' | '.join(cells)} |")
  return "\n".join(("", *lines, ""))
