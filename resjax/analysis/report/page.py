"""Writes a report: a page of HTML without scripts or other files, PNG files, and a JSON file."""

import base64
import importlib.resources
import io
import string
from collections.abc import Callable, Iterable, Sequence
from html import escape

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from resjax import locations
from resjax.analysis import depth_positions, plots
from resjax.analysis.alignment import READINGS, Alignment
from resjax.analysis.report import factor_table, sections
from resjax.analysis.report.heat_table import heat_figure, heat_table
from resjax.analysis.report.results import Results, to_json
from resjax.analysis.report.sections import Drawn
from resjax.locations import Location

PAGE, PLOTS, NUMBERS = "report.html", "plots", "results.json"
Embed = Callable[[Iterable[Drawn]], str]

TITLE = "Where models switch from the input token to the next one"
_LEAD = (
  "<p>The final norm and the output embedding decode the state after each layer as if the layers "
  "ended there (the logit lens). Early states decode to the <em>input token</em>, late ones to the "
  "<em>next token</em>. The <em>switch</em> is the first depth position from which on the "
  "geometric mean rank of the next token is better than the input token's, and at most 0.7 of that "
  "of a random token that is as frequent. Its interval comes from resampling rows of the text: if "
  "less than 95% of the resamples have a switch there is <em>no switch</em>, and if the interval "
  "covers half of the depth it is <em>not localised</em>.</p>\n"
  f'<p>The folder <a href="{PLOTS}">{PLOTS}</a> has these figures as PNG files, and '
  f'<a href="{NUMBERS}">{NUMBERS}</a> has all numbers.</p>'
)

_GREY = "A grey line in the plots marks the switch, and a band its confidence interval."


def write(results: Sequence[Results], folder: Location) -> list[Location]:
  """Writes a report into a folder, and returns the paths of its page, plots and JSON file.

  The page is written last and as a whole: where it exists, all that it points to is complete.

  Raises:
    ValueError: the folder of its plots is a link to a place outside.
  """

  locations.inside(folder, PLOTS, "the folder of the plots")

  def save(drawn: Drawn) -> None:
    plots.save(drawn.figure, folder / PLOTS / f"{drawn.name}.png")

  locations.write_text(
    folder / NUMBERS, to_json(results)
  )  # First, since only this is hard to get again.
  for number, one in enumerate(results, 1):
    if one.heat is not None:  # The page shows this one as a table.
      figure = heat_figure(one.heat, one.alignment.model)
      plots.save(figure, folder / PLOTS / f"{number}_heat.png")
  html = page(results, save).encode("utf-8", "backslashreplace").decode()  # names may be no UTF-8
  locations.write_text(folder / PAGE, html)
  return [folder / PAGE, folder / PLOTS, folder / NUMBERS]


def page(results: Sequence[Results], on_figure: Callable[[Drawn], None]) -> str:
  """Returns the page in HTML, and calls `on_figure` with each figure that it shows."""

  def embed(figures: Iterable[Drawn]) -> str:
    shown = []
    for drawn in figures:
      on_figure(drawn)
      shown.append(_figure(drawn))
    return f'<div class="figures">{"".join(shown)}</div>'

  parts = [_summary(results)]
  if len(results) > 1:
    figures = embed(sections.of_all([one.alignment for one in results]))
    note = "The axis is the relative depth. A ring on a line marks the switch of that model."
    parts.append(
      f'<section id="all"><h2>All models</h2>\n<p class="facts">{note}</p>\n{figures}</section>'
    )
  parts += [_model(one, number, embed) for number, one in enumerate(results, 1)]
  template = importlib.resources.files(__package__).joinpath("page.html").read_text("utf-8")
  return string.Template(template).substitute(title=TITLE, lead=_LEAD, sections="\n".join(parts))


def _model(one: Results, number: int, embed: Embed) -> str:
  """Returns the section of one model."""
  alignment, prefix = one.alignment, f"{number}_"
  first, *others = alignment.readings
  parts = [
    f'<section id="model-{number}"><h2>{escape(alignment.model)}</h2>',
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
  return "\n".join([*parts, "</section>"])


def _summary(results: Sequence[Results]) -> str:
  """Returns the table of the switches."""
  headings = (
    "model",
    "layers",
    "corpus",
    "tokens",
    "switch",
    "switch by what is read",
    "shuffled next",
  )
  head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
  rows = [
    f'<tr><th scope="row"><a href="#model-{number}">{escape(one.alignment.model)}</a></th>'
    + "".join(map(_cell, _facts(one.alignment)))
    + "</tr>"
    for number, one in enumerate(results, 1)
  ]
  return (
    '<section id="summary"><div class="scroll" tabindex="0" role="region" aria-label="Switches">'
    f'<table class="summary"><thead><tr>{head}</tr></thead>\n<tbody>{"".join(rows)}</tbody>'
    "</table></div></section>"
  )


def _facts(alignment: Alignment) -> list[str]:
  """Returns the cells of the summary of one model, except its name."""
  closed, read = (alignment.readings.get(reading, {}) for reading in READINGS)
  some, layers = closed or read, depth_positions.num_layers(alignment)
  cells = [str(layers), alignment.corpus, f"{some['all'].num_tokens:,}"]
  for group in (closed.get("all"), read.get("all"), some.get("shuffled")):
    if group is None:
      cells.append("not measured")
    else:
      cells.append(depth_positions.switch_text(alignment, group.switch))
  return cells


def _cell(text: str) -> str:
  words = ' class="words"' if len(text) > 24 else ""
  return f"<td{words}>{escape(text)}</td>"


def _figure(drawn: Drawn) -> str:
  kind = ' class="wide"' if drawn.wide else ""
  words = escape(f"{drawn.title}. {drawn.caption} {drawn.note}")
  return (
    f'<figure{kind} id="{drawn.name}"><img alt="{words}" src="{_data(drawn.figure)}">'
    f"<figcaption>{escape(drawn.caption)}</figcaption></figure>\n"
  )


def _data(figure: Figure) -> str:
  """Returns a figure as a data URL, which is the same for the same figure."""
  file = io.StringIO()
  with matplotlib.rc_context({"svg.hashsalt": "resjax", "svg.fonttype": "path"}):
    FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})
  return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue().encode()).decode()}"
