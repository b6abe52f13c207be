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

TITLE = "Where models switch from the input token to the next one"
_MEANING = (
  "<p>The final norm and the output embedding decode the state after each layer as if the layers "
  "ended there (the logit lens). Early states decode to the <em>input token</em>, late ones to the "
  "<em>next token</em>. The <em>switch</em> is the first depth position from which on the "
  "geometric mean rank of the next token is better than the input token's, and at most 0.7 of that "
  "of a random token that is as frequent. Its interval comes from resampling rows of the text: if "
  "less than 95% of the resamples have a switch there is <em>no switch</em>, and if the interval "
  "covers half of the depth it is <em>not localised</em>.</p>\n"
  f'<p>The folder <a href="{PLOTS}">{PLOTS}</a> has these figures as PNG, SVG and PDF files, and '
  f'<a href="{NUMBERS}">{NUMBERS}</a> has all numbers.</p>'
)

_GREY = "A grey line in the plots marks the switch, and a band its confidence interval."


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

  parts = [_summary(results), html.section("meaning", "What a switch is", _MEANING)]
  if len(results) > 1:
    figures = embed(sections.of_all([one.alignment for one in results]))
    note = "The axis is the relative depth. A ring on a line marks the switch of that model."
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
    f'<p class="facts">{escape(sections.describe(alignment))} {_GREY}</p>',
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
  """Returns the table of the switches."""
  headings = (
    "model",
    "switch",
    "end: times better than random",
    "switch by what is read",
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
  return f'<section id="summary">{html.framed("Switches", headings, rows)}</section>'


def _facts(alignment: Alignment) -> list[str]:
  """Returns the cells of the summary of one model, except its name."""
  closed, read = (alignment.readings.get(reading, {}) for reading in READINGS)
  some, times = closed or read, depth_positions.effect(alignment)
  first, *others = (
    "not measured" if group is None else depth_positions.switch_text(alignment, group.switch)
    for group in (closed.get("all"), read.get("all"), some.get("shuffled"))
  )
  size = [str(depth_positions.num_layers(alignment)), f"{some['all'].num_tokens:,}"]
  return [first, "" if times is None else f"{times:.3g}", *others, *size, alignment.corpus]
