"""A text token by token and what each depth position decodes to, as a figure."""

import functools
import unicodedata
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import Rectangle

from resjax.analysis.report import lines
from resjax.analysis.report.heat_table import BLUE, DARK, WHITE, Cell, HeatText

_FONT = "DejaVu Sans Mono"  # comes with matplotlib; all its letters are as wide as each other
_POINTS = 7.5
_LETTERS = 9  # of a word in a cell
_CELL = (0.65, 0.21)  # inches, room for these
_MARGINS = (2.2, 1.5)  # inches around the cells
_MOST_ROWS, _MOST_COLUMNS = 64, 49
_LEGEND = (
  "Bold, solid frame: the next token. Dashed frame: the input token. "
  f"Words of more than {_LETTERS} letters are cut. U+1234: a letter that cannot be drawn here."
)
_SHADES = LinearSegmentedColormap.from_list(
  "probability", [tuple(part / 255 for part in colour) for colour in (WHITE, BLUE)]
)


def heat_figure(heat: HeatText, model: str) -> Figure:
  """Draws a row per token, a column per depth position, the probability of its word as shade.

  A cell that decodes to the next token has a solid frame and bold text, one that decodes to the
  input token a dashed frame. Long texts end after 64 tokens; of more than 49 depth positions every
  n-th is there, and the first and last.

  Args:
    heat: what to show.
    model: its name.
  """
  rows, columns = range(len(heat.tokens))[:_MOST_ROWS], _columns(heat.columns)
  cells = [[heat.cells[row][column] for column in columns] for row in rows]
  names = [_short(heat.columns[column]) for column in columns]
  width = max(len(columns) * _CELL[0] + _MARGINS[0], lines.SIZE[0])
  height = len(rows) * _CELL[1] + _MARGINS[1] + 2 * _turned(names) * _POINTS / 72
  facts = f"{model}  |  {heat.corpus}  |  n = {len(rows)} tokens"
  facts += f" of {len(heat.tokens)}" * (len(rows) < len(heat.tokens))
  title = "A text, position by position"
  made, axes = lines.panel(title, facts, (width, height), _LEGEND)
  values = np.array([[cell.probability for cell in row] for row in cells])
  image = axes.imshow(values, cmap=_SHADES, vmin=0, vmax=1, aspect="auto")
  for y, row in enumerate(cells):
    for x, cell in enumerate(row):
      _draw(axes, x, y, cell)
  _name(axes, [heat.tokens[row] for row in rows], names)
  bar = made.colorbar(image, ax=axes, fraction=0.3 / width, pad=0.1 / width)
  bar.set_label("probability", fontsize=lines.LABEL)
  bar.ax.tick_params(labelsize=lines.LABEL)
  return made


def _columns(names: Sequence[str]) -> list[int]:
  step = -(-len(names) // _MOST_COLUMNS)
  if step > 1:  # the same site of each layer that is shown
    sites = sum(name.split()[:2] == ["layer", "0"] for name in names)
    step = -(-step // sites) * sites
  return sorted({0, *range(len(names) - 1, 0, -step)})


def _short(name: str) -> str:
  return name.replace("embedding", "emb.").removeprefix("layer ")


def _turned(names: Sequence[str]) -> int:
  """Returns how high names of columns stand, in letters; 0: they are short enough to lie."""
  longest = max(map(len, names))
  return longest if longest > _LETTERS else 0


def _draw(axes: Axes, x: int, y: int, cell: Cell) -> None:
  colour = "#FFFFFF" if cell.probability >= DARK else "#000000"
  style = {"weight": "bold" if cell.is_next else "normal", "color": colour}
  word = axes.text(x, y, fitted(cell.text, _LETTERS), **style, **_text(ha="center", va="center"))
  word.set_in_layout(False)  # measured once per cell, it would take most of the time
  if cell.is_next or cell.is_input:
    dashes = "-" if cell.is_next else (0, (3, 2))
    frame = {"fill": False, "edgecolor": colour, "linewidth": 1.1, "linestyle": dashes}
    axes.add_patch(Rectangle((x - 0.47, y - 0.42), 0.94, 0.84, **frame))


def _name(axes: Axes, tokens: Sequence[str], names: Sequence[str]) -> None:
  axes.set_xticks(range(len(names)), names, **_text(rotation=90 if _turned(names) else 0))
  axes.set_yticks(range(len(tokens)), [fitted(token, _LETTERS) for token in tokens], **_text())
  axes.tick_params(length=0, labeltop=True)
  axes.set_xlabel("after layer (emb.: the embedding)", fontsize=lines.LABEL)
  axes.set_ylabel("input token", fontsize=lines.LABEL)
  axes.spines[:].set_visible(False)
  axes.set_xticks(np.arange(0.5, len(names) - 1), minor=True)
  axes.set_yticks(np.arange(0.5, len(tokens) - 1), minor=True)
  axes.grid(which="minor", color="#D5D5D5", linewidth=0.5)
  axes.tick_params(which="minor", length=0)


def _text(**more) -> dict:
  return {"fontsize": _POINTS, "family": _FONT, "parse_math": False, **more}


def fitted(word: str, letters: int) -> str:
  """Returns a word as the font has it, at most so many letters of it, cut ones as an ellipsis.

  Letters that the font lacks, or that run from right to left, are U+ and their number.
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
