"""The heat map of a text in words: as a table in HTML, and as a figure.

Each row is a token and each column a depth position. A cell shows the most probable token there,
shaded by its probability. A solid frame and bold text mark the next token, a dashed frame the input
token.
"""

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import Rectangle

from resjax.data import Tokenizer
from resjax.study.analysis import depth_positions
from resjax.study.analysis.heat_map import HeatMap
from resjax.study.analysis.report import panels

# Cells shade from white to dark blue in proportion to the probability.
_WHITE, _BLUE = (255, 255, 255), (0, 72, 130)
_DARK = 0.725  # From this probability on white text has the better contrast, 4.5 : 1 or more.
_VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}
_LONG_RUN = 4  # Characters; a longer run of the same space is written as its length.

# The figure. DejaVu Sans Mono comes with matplotlib, and all its letters have the same width.
_FONT = "DejaVu Sans Mono"
_POINTS = 7.5
_LETTERS = 9  # Of a word in a cell.
_CELL = (0.65, 0.21)  # Inches, which these letters need.
_MARGINS = (2.2, 1.5)  # Inches around the cells.
_MOST_ROWS, _MOST_COLUMNS = 64, 49
_FIGURE_LEGEND = (
  "Bold, solid frame: the next token. Dashed frame: the input token. "
  f"Words of more than {_LETTERS} letters are cut. U+1234: a letter that cannot be drawn here."
)
_SHADES = LinearSegmentedColormap.from_list(
  "probability", [tuple(part / 255 for part in colour) for colour in (_WHITE, _BLUE)]
)


@dataclasses.dataclass(frozen=True)
class Cell:
  """The most probable token at one depth position, for one token of the text.

  Attributes:
    text: the most probable token as visible text.
    probability: its probability.
    is_input: whether it is the input token.
    is_next: whether it is the next token.
  """

  text: str
  probability: float
  is_input: bool
  is_next: bool


@dataclasses.dataclass(frozen=True)
class HeatText:
  """A heat map in words.

  Attributes:
    tokens: the tokens of the text as visible text.
    columns: the names of the depth positions.
    cells: a row of cells for each token, in the order of the columns.
    corpus: the name of the corpus that the text is from.
  """

  tokens: Sequence[str]
  columns: Sequence[str]
  cells: Sequence[Sequence[Cell]]
  corpus: str


def in_words(found: HeatMap, tokens: np.ndarray, tokenizer: Tokenizer, corpus: str) -> HeatText:
  """Returns a heat map of the tokens [T] in words; a probability of NaN gives the word NaN."""

  def word(token: int) -> str:
    return visible(tokenizer.piece(int(token)))

  def cell(first: int, p: float, token: int, after: int | None) -> Cell:
    if np.isnan(p):
      return Cell("NaN", 0.0, False, False)
    return Cell(word(first), float(p), bool(first == token), bool(first == after))

  following = [*map(int, tokens[1:]), None]
  cells = [
    [
      cell(first, p, token, after)
      for first, p in zip(found.tokens[:, t], found.probabilities[:, t], strict=True)
    ]
    for t, (token, after) in enumerate(zip(map(int, tokens), following, strict=True))
  ]
  words = [word(token) for token in tokens]
  return HeatText(words, depth_positions.names(found.positions), cells, corpus)


def visible(piece: bytes) -> str:
  """Returns the bytes of a token as text in which every character can be seen.

  Spaces become ␣, ends of lines ↵ and tabs ⇥, and long runs of them are counted (␣×8). Bytes that
  are not UTF-8, control and format characters are escaped (\\xe2, \\u200b). A combining mark at the
  start of the token stands on ◌. A token without bytes is ∅.
  """
  text = piece.decode("utf-8", errors="backslashreplace")
  text = re.sub(rf"(\s)\1{{{_LONG_RUN},}}", lambda run: f"{run[1]}×{len(run[0])}", text)
  shown = "".join(map(_character, text))
  return ("◌" * _is_mark(text) + shown) or "∅"


def _is_mark(text: str) -> bool:
  return text != "" and unicodedata.category(text[0]).startswith("M")


def _character(character: str) -> str:
  if character in _VISIBLE:
    return _VISIBLE[character]
  # These are separators, control and format characters, surrogates, and unassigned ones.
  if character != " " and unicodedata.category(character)[0] in "ZC":
    return character.encode("unicode_escape").decode("ascii")
  return character


def heat_table(heat: HeatText, name: str) -> str:
  """Returns the table in HTML, which scrolls in a frame and keeps its names of rows and columns.

  Screen readers read the name.
  """
  head = "".join(
    f'<th scope="col">{escape(column)}</th>' for column in ("input token", *heat.columns)
  )
  rows = [
    f'<tr><th scope="row"><bdi>{escape(token)}</bdi></th>{"".join(map(_cell, row))}</tr>'
    for token, row in zip(heat.tokens, heat.cells, strict=True)
  ]
  return (
    f'{_LEGEND}\n<div class="scroll late" tabindex="0" role="region" aria-label="{escape(name)}">'
    f'<table class="heat"><thead><tr>{head}</tr></thead>\n<tbody>\n'
    + "\n".join(rows)
    + "\n</tbody></table></div>"
  )


def _cell(cell: Cell) -> str:
  kinds = ["dark" if cell.probability >= _DARK else "light"]
  kinds += ["next"] * cell.is_next + ["input"] * (cell.is_input and not cell.is_next)
  return (
    f'<td class="{" ".join(kinds)}" style="background:{_shade(cell.probability)}" '
    f'title="{escape(cell.text)}: {cell.probability:.3f}"><bdi>{escape(cell.text)}</bdi></td>'
  )


def _shade(probability: float) -> str:
  parts = (round(w + (b - w) * probability) for w, b in zip(_WHITE, _BLUE, strict=True))
  return f"#{''.join(f'{part:02x}' for part in parts)}"


def _key(probability: float) -> str:
  kind = "dark" if probability >= _DARK else "light"
  shade = _shade(probability)
  return f'<span class="key {kind}" style="background:{shade}">{probability:g}</span>'


_LEGEND = (
  '<p class="legend"><span>probability: '
  + "".join(map(_key, (0.0, 0.25, 0.5, 0.75, 1.0)))
  + '</span><span><span class="key next">bold, solid frame</span> the next token</span>'
  '<span><span class="key input">dashed frame</span> the input token</span>'
  "<span>earlier layers are to the left</span></p>"
)


def heat_figure(heat: HeatText, model: str) -> Figure:
  """Draws the table as a figure with at most 64 tokens and 49 depth positions.

  Of more depth positions it shows every n-th, and the first and the last.
  """
  rows, columns = range(len(heat.tokens))[:_MOST_ROWS], _columns(heat.columns)
  cells = [[heat.cells[row][column] for column in columns] for row in rows]
  names = [_short(heat.columns[column]) for column in columns]
  width = max(len(columns) * _CELL[0] + _MARGINS[0], panels.SIZE[0])
  height = len(rows) * _CELL[1] + _MARGINS[1] + 2 * _turned(names) * _POINTS / 72
  facts = f"{model}  |  {heat.corpus}  |  n = {len(rows)} tokens"
  facts += f" of {len(heat.tokens)}" * (len(rows) < len(heat.tokens))
  title = "A text, position by position"
  made, axes = panels.panel(title, facts, (width, height), _FIGURE_LEGEND)
  values = np.array([[cell.probability for cell in row] for row in cells])
  image = axes.imshow(values, cmap=_SHADES, vmin=0, vmax=1, aspect="auto")
  for y, row in enumerate(cells):
    for x, cell in enumerate(row):
      _draw(axes, x, y, cell)
  _name(axes, [heat.tokens[row] for row in rows], names)
  bar = made.colorbar(image, ax=axes, fraction=0.3 / width, pad=0.1 / width)
  bar.set_label("probability", fontsize=panels.LABEL)
  bar.ax.tick_params(labelsize=panels.LABEL)
  return made


def _columns(names: Sequence[str]) -> list[int]:
  step = -(-len(names) // _MOST_COLUMNS)
  if step > 1:  # All layers that are shown have the same site.
    sites = sum(name.split()[:2] == ["layer", "0"] for name in names)
    step = -(-step // sites) * sites
  return sorted({0, *range(len(names) - 1, 0, -step)})


def _short(name: str) -> str:
  return name.replace("embedding", "emb.").removeprefix("layer ")


def _turned(names: Sequence[str]) -> int:
  """Returns the height of turned names of columns in letters, 0 if they are short enough to lie."""
  longest = max(map(len, names))
  return longest if longest > _LETTERS else 0


def _draw(axes: Axes, x: int, y: int, cell: Cell) -> None:
  colour = "#FFFFFF" if cell.probability >= _DARK else "#000000"
  weight = "bold" if cell.is_next else "normal"
  style = _text(ha="center", va="center", weight=weight, color=colour)
  word = axes.text(x, y, fitted(cell.text, _LETTERS), **style)
  word.set_in_layout(False)  # To measure every word for the layout would take most of the time.
  if cell.is_next or cell.is_input:
    dashes: Any = "-" if cell.is_next else (0, (3, 2))
    frame = Rectangle((x - 0.47, y - 0.42), 0.94, 0.84, fill=False, edgecolor=colour, linewidth=1.1)
    frame.set_linestyle(dashes)
    axes.add_patch(frame)


def _name(axes: Axes, tokens: Sequence[str], names: Sequence[str]) -> None:
  axes.set_xticks(range(len(names)), names, **_text(rotation=90 if _turned(names) else 0))
  axes.set_yticks(range(len(tokens)), [fitted(token, _LETTERS) for token in tokens], **_text())
  axes.tick_params(length=0, labeltop=True)
  axes.set_xlabel("after layer (emb.: the embedding)", fontsize=panels.LABEL)
  axes.set_ylabel("input token", fontsize=panels.LABEL)
  axes.spines[:].set_visible(False)
  axes.set_xticks(np.arange(0.5, len(names) - 1), minor=True)
  axes.set_yticks(np.arange(0.5, len(tokens) - 1), minor=True)
  axes.grid(which="minor", color="#D5D5D5", linewidth=0.5)
  axes.tick_params(which="minor", length=0)


def _text(**more: Any) -> dict[str, Any]:
  return {"fontsize": _POINTS, "family": _FONT, "parse_math": False, **more}


def fitted(word: str, letters: int) -> str:
  """Returns a drawable form of a word, cut with `…` to at most `letters` letters.

  U+ and a number stand for a letter that the font lacks or that runs from right to left.
  """
  parts = [letter if _is_drawable(letter) else f"U+{ord(letter):04X}" for letter in word]
  if len("".join(parts)) <= letters:
    return "".join(parts)
  kept = [part for end, part in enumerate(parts, 1) if len("".join(parts[:end])) < letters]
  return "".join([*kept, "…"])


def _is_drawable(letter: str) -> bool:
  return ord(letter) in _letters() and unicodedata.bidirectional(letter) not in ("R", "AL")


@functools.cache
def _letters() -> frozenset[int]:
  return frozenset(get_font(findfont(_FONT)).get_charmap())
