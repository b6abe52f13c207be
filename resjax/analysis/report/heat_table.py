"""A text token by token and what each depth position decodes to, as a table of HTML."""

import dataclasses
from collections.abc import Sequence
from html import escape

# From white to dark blue: linear in the share of it, so that twice as dark is twice as probable.
WHITE, BLUE = (255, 255, 255), (0, 72, 130)
DARK = 0.725  # share of blue from which white text has the better contrast, 4.5 : 1 or more


@dataclasses.dataclass(frozen=True)
class Cell:
  """What one depth position decodes one token to.

  Attributes:
    text: of the most probable token, visible.
    probability: of it.
    is_input: whether it is the token that is there.
    is_next: whether it is the token that follows.
  """

  text: str
  probability: float
  is_input: bool
  is_next: bool


@dataclasses.dataclass(frozen=True)
class HeatText:
  """A text and what every depth position decodes its tokens to.

  Attributes:
    tokens: of the text, visible.
    columns: names of the depth positions.
    cells: of each token, in the order of the columns.
    corpus: where the text is from.
  """

  tokens: Sequence[str]
  columns: Sequence[str]
  cells: Sequence[Sequence[Cell]]
  corpus: str


def heat_table(heat: HeatText, name: str) -> str:
  """Returns the table: a row per token, a column per depth position, the probability as shade.

  A cell that decodes to the next token has a solid frame and bold text, one that decodes to the
  input token a dashed frame. The table scrolls in a frame of its own; names of rows and columns
  stay in sight.

  Args:
    heat: what to show.
    name: of the table, for readers who hear it.
  """
  head = "".join(
    f'<th scope="col">{escape(column)}</th>' for column in ("input token", *heat.columns)
  )
  rows = [
    f'<tr><th scope="row"><bdi>{escape(token)}</bdi></th>{"".join(map(_cell, row))}</tr>'
    for token, row in zip(heat.tokens, heat.cells, strict=True)
  ]
  return (
    f'{_LEGEND}\n<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">'
    f'<table class="heat"><thead><tr>{head}</tr></thead>\n<tbody>\n'
    + "\n".join(rows)
    + "\n</tbody></table></div>"
  )


def _cell(cell: Cell) -> str:
  kinds = ["dark" if cell.probability >= DARK else "light"]
  kinds += ["next"] * cell.is_next + ["input"] * (cell.is_input and not cell.is_next)
  return (
    f'<td class="{" ".join(kinds)}" style="background:{_shade(cell.probability)}" '
    f'title="{escape(cell.text)}: {cell.probability:.3f}"><bdi>{escape(cell.text)}</bdi></td>'
  )


def _shade(probability: float) -> str:
  parts = (round(w + (b - w) * probability) for w, b in zip(WHITE, BLUE, strict=True))
  return f"#{''.join(f'{part:02x}' for part in parts)}"


def _key(probability: float) -> str:
  kind = "dark" if probability >= DARK else "light"
  shade = _shade(probability)
  return f'<span class="key {kind}" style="background:{shade}">{probability:g}</span>'


_LEGEND = (
  '<p class="legend"><span>probability: '
  + "".join(map(_key, (0.0, 0.25, 0.5, 0.75, 1.0)))
  + '</span><span><span class="key next">bold, solid frame</span> the next token</span>'
  '<span><span class="key input">dashed frame</span> the input token</span></p>'
)
