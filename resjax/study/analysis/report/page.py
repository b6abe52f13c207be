"""Writes a report: a page of HTML without scripts or other files, figures, and a JSON file."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape

from resjax.base import Location, locations
from resjax.study.analysis import depth_positions, plots
from resjax.study.analysis.alignment import READINGS, Alignment
from resjax.study.analysis.report import factor_table, sections
from resjax.study.analysis.report import parts as html
from resjax.study.analysis.report.heat_table import heat_figure, heat_table
from resjax.study.analysis.report.parts import Drawn
from resjax.study.analysis.report.results import Results, to_json

PAGE, PLOTS, NUMBERS = "report.html", "plots", "results.json"
Embed = Callable[[Iterable[Drawn]], str]

TITLE = "Where models stop to read the input token, and begin to read the next one"
_MEANING = (
  "<p>The final norm and the output embedding decode the state after each layer as if the layers "
  "ended there (the logit lens). A token is <em>read</em> where its mean probability is at least "
  "half of what the next token has in the end, both beyond that of a random token as frequent. The "
  "input token is <em>lost</em> at the first depth position from which on it is not read, and the "
  "next token <em>emerges</em> at the first from which on, to the end, it is read; between them "
  "the lens reads <em>neither</em>. Intervals come from resampling rows of the text. There is "
  "<em>no shift</em> unless in the end the geometric mean rank of the next token is at most 0.7 of "
  "that of the random token in 95% of the resamples, and what may lie anywhere in half of the "
  "depth is <em>not localised</em>. The numbers have the same by log-rank, cosine and "
  "projection.</p>\n"
  f'<p>The folder <a href="{PLOTS}">{PLOTS}</a> has these figures as files, and '
  f'<a href="{NUMBERS}">{NUMBERS}</a> has all numbers.</p>'
)

_MARKS = (
  "In the plots a dashed line marks where the input token is lost, a solid one where the next "
  "token emerges, bands their confidence intervals; between them, hatched, neither is read."
)


def write(results: Sequence[Results], folder: Location, *, titles: bool = False) -> list[Location]:
  """Writes a report into a folder, and returns the paths of its page, plots and JSON file.

  The files of figures have a title with `titles` alone; on the page it stands below them.
  The page is written last and as a whole: where it exists, all that it points to is complete.

  Raises:
    ValueError: the folder of its plots is a link to a place outside.
  """

  locations.inside(folder, PLOTS, "the folder of the plots")

  def save(drawn: Drawn) -> None:
    plots.save(drawn.figure, folder / PLOTS / f"{drawn.name}.png", titles=titles)

  # The numbers come first, since they alone are hard to get again.
  locations.write_text(folder / NUMBERS, to_json(results))
  for number, one in enumerate(results, 1):
    if one.heat is not None:  # The page shows this one as a table.
      figure = heat_figure(one.heat, one.alignment.model)
      plots.save(figure, folder / PLOTS / f"{number}_heat.png", titles=titles)
  locations.write_text(folder / PAGE, page(results, save))
  return [folder / PAGE, folder / PLOTS, folder / NUMBERS]


def page(results: Sequence[Results], on_figure: Callable[[Drawn], None]) -> str:
  """Returns the page in HTML, and calls `on_figure` with each figure that it shows."""

  def embed(figures: Iterable[Drawn]) -> str:
    def shown() -> Iterator[Drawn]:
      for drawn in figures:
        on_figure(drawn)
        yield drawn

    return html.figures(shown())

  parts = [_summary(results), html.section("meaning", "What a shift is", _MEANING)]
  if len(results) > 1:
    figures = embed(sections.of_all([one.alignment for one in results]))
    note = "The axis is the relative depth. A ring on a line marks where the next token emerges."
    parts.append(html.section("all", "All models", f'<p class="facts">{note}</p>\n', figures))
  parts += [_model(one, number, embed) for number, one in enumerate(results, 1)]
  lead = "\n".join(
    html.answer(one.alignment.model, depth_positions.answer(one.alignment)) for one in results
  )
  return html.fill(TITLE, lead, parts)


def _model(one: Results, number: int, embed: Embed) -> str:
  """Returns the section of one model."""
  alignment, prefix = one.alignment, f"{number}_"
  first, *others = alignment.readings
  parts = [
    f'<p class="facts">{escape(sections.describe(alignment))} {_MARKS}</p>',
    "<h3>Along depth</h3>",
    embed(sections.of_model(alignment, prefix, first)),
  ]
  if others and sections.readings_differ(alignment):
    figures = embed(sections.of_model(alignment, f"{prefix}{others[0]}_", others[0]))
    summary = "The same figures for what the next site reads"
    parts.append(f"<details><summary>{summary}</summary>{figures}</details>")
  elif others:
    parts.append("<p>The next site reads the same state, so that one set of figures is enough.</p>")
  for title, drawn in (
    ("Depth attention", sections.depth_attention(alignment, prefix)),
    ("Cuts of the residual path", sections.cuts(one, prefix)),
  ):
    rest = list(drawn)
    if rest:
      parts += [f"<h3>{title}</h3>", embed(rest)]
  if one.factors is not None:
    parts += ["<h3>Factors of the stream</h3>", factor_table.html(one.factors)]
  if one.heat is not None:
    name = f"Predictions of {alignment.model} for a text, by depth"
    parts += ["<h3>A text, position by position</h3>", heat_table(one.heat, name)]
  return html.section(f"model-{number}", alignment.model, "\n".join(parts))


def _summary(results: Sequence[Results]) -> str:
  """Returns the table of the shifts."""
  headings = (
    "model",
    "input token lost",
    "next token emerges",
    "10 to 90%",
    "neither read",
    "ranks cross",
    "emerges in ranks",
    "emerges, all frequencies alike",
    "end: times better than random",
    "emerges in what is read",
    "shuffled next",
    "layers",
    "tokens",
    "corpus",
  )
  rows = (
    f'<tr><th scope="row"><a href="#model-{number}">{escape(one.alignment.model)}</a></th>'
    + "".join(map(html.cell, _facts(one.alignment)))
    + "</tr>"
    for number, one in enumerate(results, 1)
  )
  return f'<section id="summary">{html.framed("Shifts", headings, rows)}</section>'


def _facts(alignment: Alignment) -> list[str]:
  """Returns the cells of the summary of one model, except its name."""
  closed, read = (alignment.readings.get(reading, {}) for reading in READINGS)
  some, times = closed or read, depth_positions.effect(alignment)
  shift, ranks = depth_positions.shift_of(alignment), some["all"].shifts.get("log_rank")
  by_rank, balanced, by_read, shuffled = (
    "not measured"
    if group is None
    else depth_positions.emergence_text(alignment, group.shifts.get(measure))
    for group, measure in (
      (some["all"], "log_rank"),
      (some.get("balanced"), depth_positions.MAIN),
      (read.get("all"), depth_positions.MAIN),
      (some.get("shuffled"), depth_positions.MAIN),
    )
  )
  return [
    *depth_positions.cells(alignment, shift),
    depth_positions.crossing_text(alignment, ranks),
    by_rank,
    balanced,
    "" if times is None else f"{times:.3g}",
    by_read,
    shuffled,
    str(depth_positions.num_layers(alignment)),
    f"{some['all'].num_tokens:,}",
    alignment.corpus,
  ]
