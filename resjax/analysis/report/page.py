"""The report as one page of HTML that needs no other file and no network, and no script."""

import base64
import importlib.resources
import io
import string
from collections.abc import Callable, Iterable, Sequence
from html import escape

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from resjax.analysis import depth_positions
from resjax.analysis.alignment import READINGS, Alignment
from resjax.analysis.report import sections
from resjax.analysis.report.heat_table import heat_table
from resjax.analysis.report.results import Results
from resjax.analysis.report.sections import Drawn

Embed = Callable[[Iterable[Drawn]], str]

TITLE = "Where models switch from the input token to the next one"
_LEAD = (
  "<p>The state after each layer is decoded by the final norm and the output embedding, as if the "
  "layers ended there (a lens). Early states decode to the <em>input token</em>, late ones to the "
  "<em>next token</em>. The <em>switch</em> is the first depth position from which on the next "
  "token has a better mean log-rank than the input token and than a random token that is as "
  "frequent; its interval comes from resampling rows of the corpus.</p>\n"
  '<p>The same figures as PNG files lie in <a href="plots">plots</a>, all numbers in '
  '<a href="results.json">results.json</a>.</p>'
)

_GREY = "Grey in the plots: the switch, and its confidence interval as a band."


def page(results: Sequence[Results], on_figure: Callable[[Drawn], None]) -> str:
  """Returns the page.

  Args:
    results: of the models, in their order.
    on_figure: is given each figure before it becomes part of the page.
  """

  def embed(drawn: Iterable[Drawn]) -> str:
    shown = []
    for one in drawn:
      on_figure(one)
      shown.append(_figure(one))
    return f'<div class="figures">{"".join(shown)}</div>'

  parts = [_summary(results)]
  if len(results) > 1:
    figures = embed(sections.of_all([one.alignment for one in results]))
    note = "Over relative depth. The ring on a line is the switch of that model."
    parts.append(
      f'<section id="all"><h2>All models</h2>\n<p class="facts">{note}</p>\n{figures}</section>'
    )
  parts += [_model(one, number, embed) for number, one in enumerate(results, 1)]
  template = importlib.resources.files(__package__).joinpath("page.html").read_text("utf-8")
  return string.Template(template).substitute(title=TITLE, lead=_LEAD, sections="\n".join(parts))


def _model(one: Results, number: int, embed: Embed) -> str:
  """The section of one model."""
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
    parts.append(f"<details><summary>Of what the next site reads</summary>{figures}</details>")
  elif others:
    parts.append("<p>What the next site reads is the same state: one reading is shown.</p>")
  for title, drawn in (
    ("Depth attention", sections.depth_attention(alignment, prefix)),
    ("Cuts of the residual path", sections.cuts(one, prefix)),
  ):
    figures = list(drawn)
    if figures:
      parts += [f"<h3>{title}</h3>", embed(figures)]
  if one.heat is not None:
    name = f"What {alignment.model} decodes a text to, by depth"
    parts += ["<h3>A text, position by position</h3>", heat_table(one.heat, name)]
  return "\n".join([*parts, "</section>"])


def _summary(results: Sequence[Results]) -> str:
  """The table of the switches."""
  headings = ("model", "layers", "corpus", "tokens", "switch", "by what is read", "shuffled next")
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
  """Cells of the summary behind the name."""
  closed, read = (alignment.readings.get(reading) for reading in READINGS)
  some = closed or read
  cells = [
    str(depth_positions.num_layers(alignment)),
    alignment.corpus,
    f"{some['all'].num_tokens:,}",
  ]
  for groups, name in ((closed, "all"), (read, "all"), (some, "shuffled")):
    known = groups is not None and name in groups
    cells.append(
      depth_positions.switch_text(alignment, groups[name].switch) if known else "not measured"
    )
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
  """A figure as the address of an image that is part of the page; the same for the same figure."""
  file = io.StringIO()
  with matplotlib.rc_context({"svg.hashsalt": "resjax", "svg.fonttype": "path"}):
    FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})
  return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue().encode()).decode()}"
