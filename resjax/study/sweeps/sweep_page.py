"""One page of HTML about a sweep: its verdicts, its plots, and its runs."""

from collections.abc import Iterator, Sequence
from html import escape

from resjax.base import Location, terminal
from resjax.study.analysis.report import parts
from resjax.study.analysis.report.parts import Drawn
from resjax.study.sweeps import comparison_plots, comparison_table, results, table
from resjax.study.sweeps.comparison import UNDECIDED, Comparison, Row
from resjax.study.sweeps.results import Result
from resjax.study.sweeps.table import Stored

_MOST_ANSWERS = 4  # contrasts on the first screen of a telephone
_HEADINGS = ("run", "bits per byte", "loss", "parameters", "tokens/s", "step", "status")


def page(folder: Location) -> str:
  """Returns the page of a sweep whose results were written.

  Raises:
    FileNotFoundError: they were not.
    ValueError: they are damaged.
  """
  found = table.read(folder)
  if not found.runs:
    raise ValueError(f"{folder / table.FILE_NAME} holds no runs")
  begun = [run for run in found.runs if run.status != results.NOT_RUN]
  sections = [
    parts.section("plots", "Plots", parts.figures(_figures(found))),
    *_contrasts(found.comparison),
    parts.section("runs", "Runs", parts.table("Runs", _HEADINGS, map(_row, begun))),
  ]
  errors = [(run.name, run.error) for run in found.runs if run.error is not None]
  if errors:
    shown = parts.table("Errors", ("run", "error"), errors)
    sections.append(parts.section("errors", "Runs that failed", shown))
  lead = "\n".join(_answers(found, str(folder)))
  return parts.fill(f"Sweep {folder.name}", lead, sections)


def _answers(found: Stored, name: str) -> Iterator[str]:
  """Yields a sentence about the finished runs, and one for each of the first contrasts."""
  rows = _rows(found.comparison)
  if not rows:
    yield parts.answer(name, _best(found.runs))
  for row in rows[:_MOST_ANSWERS]:
    assert found.comparison is not None
    words = comparison_table.in_words(row, found.comparison.metric)
    yield parts.answer(_names(row), words)
  waiting = sum(run.status == results.NOT_RUN for run in found.runs)
  if waiting:
    yield parts.answer(name, f"{waiting} of {len(found.runs)} runs have not begun")


def _rows(found: Comparison | None) -> list[Row]:
  """Returns the contrasts that have a difference, those with a verdict first."""
  if found is None:
    return []
  rows = [row for row in (*found.planned, *found.afterwards) if row.difference]
  return sorted(rows, key=lambda row: row.verdict == UNDECIDED)


def _contrasts(found: Comparison | None) -> Iterator[str]:
  """Yields the section with all contrasts, if there are any."""
  rows = _rows(found)
  if found is not None and rows:
    cells = [(_names(row), comparison_table.in_words(row, found.metric)) for row in rows]
    shown = parts.table("Contrasts", ("contrast", "verdict"), cells)
    rules = {"planned": found.planned, "found afterwards": found.afterwards}
    said = {name: comparison_table.rule(rows) for name, rows in rules.items()}
    notes = [f"{name}: {words}." for name, words in said.items() if words]
    facts = f'<p class="facts">{escape(" ".join(notes))}</p>\n'
    yield parts.section("contrasts", "Contrasts", shown, facts)


def _names(row: Row) -> str:
  return f"{row.contrast.arm} less {row.contrast.reference}"


def _best(runs: Sequence[Result]) -> str:
  """Returns which finished run is best, and which one the others are compared with."""
  done = [r for r in runs if r.status == results.DONE and r.bits_per_byte is not None]
  if not done:
    return f"none of {len(runs)} runs is finished"
  best = min(done, key=lambda r: r.bits_per_byte or 0)
  words = f"{best.name} is the best of {len(done)} runs, {best.bits_per_byte:.4f} bits per byte"
  delta = best.delta(runs[0])
  return (
    words if delta is None or best is runs[0] else f"{words}, {delta:+.4f} against {runs[0].name}"
  )


def _figures(found: Stored) -> Iterator[Drawn]:
  runs, shown = found.runs, found.comparison
  of_runs = table.figure(runs, None, "")
  differences = comparison_plots.differences(shown, "") if shown else None
  curves = comparison_plots.curves(runs, shown.metric, "") if shown else None
  many = "Each arm once: with several seeds a dot is their mean, and a bar its 95 % interval."
  paired = "Paired differences with 95 % intervals, each by its own paired t."
  bands = "Means over seeds with bands of 95 % intervals."
  for name, drawn, title, caption in (
    ("sweep", of_runs, "Results and costs", many),
    ("differences", differences, "Differences", paired),
    ("curves", curves, "Curves", bands),
  ):
    if drawn is not None:
      yield Drawn(name, drawn, title, caption)


def _row(run: Result) -> tuple[str, ...]:
  numbers = (
    (run.bits_per_byte, ".4f"),
    (run.loss, ".4f"),
    (run.num_parameters, ",d"),
    (run.tokens_per_second, ",.0f"),
  )
  cells = (terminal.number(value, form) for value, form in numbers)
  return run.name, *cells, f"{run.step:,}", run.status
