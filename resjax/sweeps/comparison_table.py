"""The comparison of a sweep as text for a terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from resjax.statistics import Difference
from resjax.sweeps.comparison import Comparison, Row
from resjax.sweeps.plan import Plan


def show_plan(plan: Plan, effects: tuple[float, float] | None, console: Console) -> None:
  """Prints what a sweep asks, and what it can show.

  Args:
    plan: the plan.
    effects: the smallest differences that it can show, see `comparison.expected`; None: not known.
    console: where to print.
  """
  asked = plan.questions
  seeds = ", ".join(map(str, plan.seeds))
  lines = [
    f"plan of {plan.date}: {len(plan.arms)} arms, seeds {seeds}, {len(asked.contrasts)} contrasts "
    f"with {asked.baseline} in {asked.key} ({asked.better} is better), margin {asked.margin:.2%}; "
    f"ends with {asked.stopping}",
  ]
  if len(plan.seeds) < 2:
    lines.append("one seed: no difference can be told from noise; give more, as --seeds=0,1,2")
  elif effects is None:
    lines.append(
      "smallest difference that it can show: not known; give the standard deviation over seeds as "
      "--spread, or run the seeds of the baseline first (--only)"
    )
  else:
    lines.append(_effects(effects, "can be seen"))
  console.print("\n".join(lines), soft_wrap=True)


def show(comparison: Comparison, console: Console) -> None:
  """Prints what a sweep shows: the planned contrasts, the others, and deviations from the plan."""
  console.print("\n".join(_exploratory(comparison.exploratory)), soft_wrap=True, end="")
  _block(f"planned contrasts in {comparison.metric}", comparison.planned, console)
  if comparison.afterwards:
    title = "found afterwards, to be tested on new seeds"
    _block(title, comparison.afterwards, console)
  for arm, values in comparison.tuned.items():
    found = ", ".join(f"{name}={value:g}" for name, value in values.items())
    console.print(f"tuned: {arm} {found}", soft_wrap=True)
  for line in comparison.deviations:
    console.print(f"deviation: {line}", soft_wrap=True)
  if comparison.deviation is not None:
    console.print(
      f"pooled standard deviation of a paired difference: {comparison.deviation:.3g}",
      soft_wrap=True,
    )
  if comparison.detectable:
    console.print(_effects(comparison.detectable, "could have been seen"), soft_wrap=True)


def _exploratory(reasons: Sequence[str]) -> list[str]:
  return [f"exploratory: {reason}" for reason in reasons]


def _effects(effects: tuple[float, float], words: str) -> str:
  alone, strictest = effects
  return (
    f"smallest difference that {words} (80 of 100 times): {alone:.3g}, in the strictest step of "
    f"Holm {strictest:.3g}"
  )


def _block(title: str, rows: Sequence[Row], console: Console) -> None:
  references = {row.contrast.reference for row in rows}
  shared = len(references) == 1
  table = _table(title + (f", less {references.pop()}" if shared else ""), "arm")
  for heading in ("n", "mean", "Δ", "95 % interval", "p Holm"):
    table.add_column(heading, justify="right", no_wrap=True)
  table.add_column("verdict", no_wrap=True)
  for row in rows:
    table.add_row(_name(row, shared), str(row.seeds), _number(row.mean, ".4f"), *_found(row))
  console.print(table)
  costs = _table("costs", "arm")
  for heading in ("parameters", "tokens/s ×", "memory ×", "FLOPs ×"):
    costs.add_column(heading, justify="right", no_wrap=True)
  for row in rows:
    parameters = "" if row.parameters is None else f"{row.parameters / 1e6:.3f}M"
    ratios = (row.speed_ratio, row.memory_ratio, row.flops_ratio)
    costs.add_row(_name(row, shared), parameters, *(_number(ratio, ".3f") for ratio in ratios))
  console.print(costs)


def _table(title: str, first: str) -> Table:
  table = Table(
    title=title,
    title_justify="left",
    title_style="bold",
    box=box.SIMPLE_HEAD,
    pad_edge=False,
    padding=(0, 1, 0, 0),
  )
  table.add_column(first, overflow="fold")
  return table


def _name(row: Row, shared: bool) -> str:
  return row.contrast.arm if shared else f"{row.contrast.arm} - {row.contrast.reference}"


def _found(row: Row) -> list[str]:
  """Returns the difference, its interval, the adjusted p value and the verdict."""
  d = row.difference
  if d is None:
    return ["", "", "", row.verdict]
  return [f"{d.mean:+.4f}", _interval(d), _p_value(d), row.verdict]


def _interval(difference: Difference) -> str:
  if difference.interval is None:
    return ""
  low, high = difference.interval
  return f"{low:+.4f}..{high:+.4f}" + " own s" * difference.own


def _p_value(difference: Difference) -> str:
  if difference.holm is None:
    return ""
  return "<0.001" if difference.holm < 0.001 else f"{difference.holm:.3f}"


def _number(value: float | None, form: str) -> str:
  return "" if value is None else format(value, form)
