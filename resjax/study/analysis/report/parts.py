"""What pages of HTML are made of: the template, tables and figures. Every text is escaped."""

import base64
import dataclasses
import importlib.resources
import re
import string
from collections.abc import Collection, Iterable, Sequence
from html import escape

from matplotlib.figure import Figure

from resjax.study.analysis import plots

_NUMBERS = re.compile(r"(?<!\S)\S{0,24}\d\S{0,24}(?!\S)")  # words with a digit, if not too long
_NUMBER = re.compile(r"([<+-]?[\d.,]+(e[+-]?\d+)?[%kMGT]?)?")  # a cell that holds one, or nothing
_RIGHT = ' class="right"'
_SEPARATORS = re.compile(r"[./_]")


@dataclasses.dataclass(frozen=True)
class Drawn:
  """A figure of a page.

  Attributes:
    name: its id on the page, and the name of its file, without ending.
    figure: the figure, whose title the page hides.
    title: its title, which stands in the caption.
    caption: a text that explains it.
    note: further text for readers who do not see the figure, as the model and the corpus.
    wide: whether it needs more room than a panel.
  """

  name: str
  figure: Figure
  title: str
  caption: str
  note: str = ""
  wide: bool = False


def fill(title: str, lead: str, sections: Iterable[str]) -> str:
  """Returns a page of HTML from its title, which is text, and its parts, which are HTML.

  Bytes of names that are no UTF-8 are spelled out.
  """
  template = importlib.resources.files(__package__).joinpath("page.html").read_text("utf-8")
  parts = {"title": escape(title), "lead": lead, "sections": "\n".join(sections)}
  html = string.Template(template).substitute(parts)
  return html.encode("utf-8", "backslashreplace").decode()


def answer(subject: str, words: str) -> str:
  """Returns a sentence for the top of a page: a result about a subject."""
  said = _NUMBERS.sub(r'<span class="whole">\g<0></span>', escape(words))
  return f'<p class="answer"><strong>{escape(subject)}</strong>: {said}.</p>'


def section(name: str, title: str, *parts: str) -> str:
  """Returns a section with a title from its parts, which are HTML."""
  return f'<section id="{name}"><h2>{escape(title)}</h2>\n{"".join(parts)}</section>'


def table(label: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """Returns a table of texts in a frame of its own, whose first column names the rows.

  Columns that hold numbers alone stand at the right. Empty headings are left out.
  """
  rows = list(rows)
  columns = list(zip(*rows, strict=True))
  right = {at for at, texts in enumerate(columns) if at and all(map(_NUMBER.fullmatch, texts))}
  lines = (
    f"<tr>{_name(name)}{''.join(cell(text, at in right) for at, text in enumerate(cells, 1))}</tr>"
    for name, *cells in rows
  )
  return framed(label, headings, lines, right)


def framed(
  label: str, headings: Sequence[str], rows: Iterable[str], right: Collection[int] = ()
) -> str:
  """Returns a table in a frame of its own from rows that are HTML.

  Args:
    label: the name of the frame.
    headings: the names of the columns.
    rows: the rows.
    right: the columns whose headings stand at the right.
  """
  cells = (
    f'<th scope="col"{_RIGHT * (at in right)}>{escape(heading)}</th>'
    for at, heading in enumerate(headings)
  )
  head = f"<thead><tr>{''.join(cells)}</tr></thead>\n" if any(headings) else ""
  return (
    f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
    f'<table class="summary">{head}<tbody>{"".join(rows)}</tbody></table></div>\n'
  )


def _name(name: str) -> str:
  """Returns the name of a row, which may be broken after a dot, a slash or an underscore."""
  broken = _SEPARATORS.sub(r"\g<0><wbr>", escape(name))
  return f'<th scope="row">{broken}</th>'


def cell(text: str, right: bool = False) -> str:
  """Returns a cell of a table; numbers are never wrapped."""
  number = text and _NUMBER.fullmatch(text)
  kind = "number" if number else "words" if len(text) > 24 else ""
  return f'<td class="{kind}{" right" * right}">{escape(text)}</td>'


def figures(drawn: Iterable[Drawn]) -> str:
  """Returns figures side by side, as many as there is room for."""
  return f'<div class="figures">{"".join(map(_figure, drawn))}</div>\n'


def _figure(drawn: Drawn) -> str:
  kind, title = ' class="wide"' if drawn.wide else "", escape(drawn.title)
  words = escape(f"{drawn.title}. {drawn.caption} {drawn.note}".strip())
  return (
    f'<figure{kind} id="{drawn.name}"><img alt="{words}" src="{_data(drawn.figure)}">'
    f"<figcaption><strong>{title}.</strong> {escape(drawn.caption)}</figcaption></figure>\n"
  )


def _data(drawn: Figure) -> str:
  """Returns a figure as a data URL, which is the same for the same figure."""
  plots.hide_title(drawn)
  return f"data:image/svg+xml;base64,{base64.b64encode(plots.render(drawn, 'svg')).decode()}"
