"""The comparison of a sweep as text for a terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from resjax.base import terminal
from resjax.study.statistics import Difference, decimals
from resjax.study.sweeps.comparison import UNDECIDED, Arm, Comparison, Row
from resjax.study.sweeps.plan import Plan


def show_plan(
  plan: Plan, effects: Mapping[int, tuple[float, float]] | None, console: Console
) -> None:
  """Prints the questions of a sweep, and the smallest effects that it can show.

  Args:
    plan: the plan.
    effects: the smallest differences that it can show by the number of seeds, see
      `comparison.expected`; None: not known.
    console: where to print.
  """
  asked = plan.questions
  seeds = ", ".join(map(str, plan.seeds))
  lines = [
    f"plan of {plan.date}: {len(plan.arms)} arms, seeds {seeds}, contrasts in {asked.key} "
    f"({asked.better} is better): {_contrasts(plan)}; margin {asked.margin:.2%} of the reference; "
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
    shown = (f"with {n} seeds {_effects(pair)}" for n, pair in effects.items())
    lines.append(
      f"smallest difference that can be seen (80 of 100 times): {'; '.join(shown)}; each contrast "
      "by its own paired t"
    )
  terminal.say(console, "\n".join(lines))


def _contrasts(plan: Plan) -> str:
  return ", ".join(f"{contrast.arm} - {contrast.reference}" for contrast in plan.contrasts)


def show(comparison: Comparison, console: Console) -> None:
  """Prints the results of a sweep: planned contrasts, others, and deviations from the plan."""
  for reason in comparison.exploratory:
    terminal.say(console, f"exploratory: {reason}")
  _block(f"planned contrasts in {comparison.metric}", comparison.planned, comparison, console)
  if comparison.afterwards:
    title = "found afterwards, to be tested on new seeds"
    _block(title, comparison.afterwards, comparison, console)
  _costs(comparison, console)
  for arm, values in comparison.tuned.items():
    found = ", ".join(f"{name}={value:g}" for name, value in values.items())
    terminal.say(console, f"tuned: {arm} {found}")
  for line in comparison.deviations:
    terminal.say(console, f"deviation: {line}")


def _effects(effects: tuple[float, float]) -> str:
  alone, strictest = effects
  return f"{alone:.3g} (in the strictest step of Holm {strictest:.3g})"


def _block(title: str, rows: Sequence[Row], comparison: Comparison, console: Console) -> None:
  """Prints the contrasts that were tested together, with each reference above them."""
  references = list(dict.fromkeys(row.contrast.reference for row in rows))
  console.print(f"\n{title}; Δ: less {references[0] if len(references) == 1 else 'the reference'}")
  headings = ("n", "mean", "Δ", "95 % interval", "p Holm")
  table = terminal.Table("arm", numbers=headings)
  table.numbers("verdict", justify="left")
  for name in references:
    table.add_row(name, *_reached(comparison.arms[name]))
  for row in rows:
    shown = row.contrast.arm
    if len(references) > 1:
      shown += f" - {row.contrast.reference}"
    table.add_row(shown, *_reached(comparison.arms[row.contrast.arm]), *_found(row))
  console.print(table)
  if words := rule(rows):
    terminal.say(console, f"rule: {words}")


def rule(rows: Sequence[Row]) -> str:
  """Returns how contrasts that were tested together got intervals, and what they could show."""
  found = [(row.detectable, row.contrast.arm, row.difference) for row in rows if row.detectable]
  if not found:
    return ""
  freedoms = sorted({one.freedom for *_, one in found if one})
  seen = [f"{_effects(effects)} for {arm}" for effects, arm, _ in sorted(found, key=lambda f: f[0])]
  return (
    f"paired t of each contrast alone, ν = seeds − 1 = {_range(freedoms)}; p Holm over "
    f"{len(found)}; assumed: independent seeds, differences about normal; not assumed: equal or "
    f"independent noise of arms; smallest difference seen 80 of 100 times: {_range(seen)}"
  )


def _range(found: Sequence[object]) -> str:
  return " to ".join(map(str, dict.fromkeys((found[0], found[-1]))))


def _costs(comparison: Comparison, console: Console) -> None:
  """Prints parameters, and what each arm costs as a multiple of its reference."""
  rows = {row.contrast.arm: row for row in (*comparison.afterwards, *comparison.planned)}
  numbers = "parameters", "tokens/s ×", "memory ×", "FLOPs ×"
  table = terminal.Table("arm", numbers=numbers)
  for name, arm in comparison.arms.items():
    parameters = "" if arm.parameters is None else f"{arm.parameters / 1e6:.3f}M"
    ratios: tuple[float | None, ...] = ()
    if name in rows:
      ratios = (rows[name].speed_ratio, rows[name].memory_ratio, rows[name].flops_ratio)
    table.add_row(name, parameters, *(terminal.number(ratio, ".3f") for ratio in ratios))
  console.print(table)


def _reached(arm: Arm) -> tuple[str, str]:
  return str(arm.seeds), terminal.number(arm.mean, ".4f")


def _found(row: Row) -> list[str]:
  """Returns the difference, its interval, the adjusted p value and the verdict."""
  d = row.difference
  if d is None:
    return ["", "", "", row.verdict]
  return [_number(d, d.mean), _interval(d), _p_value(d), _verdict(row)]


def in_words(row: Row, metric: str) -> str:
  """Returns the result of a contrast in a sentence, without the names of its arms."""
  d = row.difference
  if d is None:
    return row.verdict
  interval, p = _interval(d), _p_value(d)
  sure = f" (95%: {interval})" if interval else ""
  tested = f", p {p if p.startswith('<') else f'= {p}'}" if p else ""
  said = (
    f"{_verdict(row)}, {_number(d, d.mean)} in {metric}{sure}{tested}, {len(d.seeds)}\u00a0seeds"
  )
  if row.verdict != UNDECIDED or row.detectable is None:
    return said
  return f"{said}; a difference of {_effects(row.detectable)} is seen 80 of 100 times"


def _verdict(row: Row) -> str:
  return f"{row.verdict} < margin" if row.is_small else row.verdict


def _interval(difference: Difference) -> str:
  if difference.interval is None:
    return ""
  return "..".join(_number(difference, end) for end in difference.interval)


def _number(difference: Difference, value: float) -> str:
  """Returns a number with as many decimals as the interval leaves, four or more."""
  digits = decimals(*(difference.interval or (0.0, 0.0)), least=4)
  return f"{value:+.{digits}f}"


def _p_value(difference: Difference) -> str:
  if difference.holm is None:
    return ""
  return "<0.001" if difference.holm < 0.001 else f"{difference.holm:.3f}"
