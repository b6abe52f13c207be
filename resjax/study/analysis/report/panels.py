"""Panels of lines over depth, whose dashes, markers and labels tell them apart without colour.

A panel can be read on a telephone, and names the model, the corpus and the number of tokens.
"""

import dataclasses
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resjax.study.analysis.alignment import Alignment, Estimate, Shift
from resjax.study.analysis.depth_positions import interval, places, unclaimed
from resjax.study.analysis.plots import TITLE, drawable

SIZE = (5.0, 3.8)  # Inches; at a width of 370 pixels the letters are still legible.
LABEL = 8.5  # Points.
_LEADER = {
  "arrowstyle": "-",
  "color": "#BBBBBB",
  "linewidth": 0.7,
  "shrinkB": 3,
  "relpos": (0, 0.5),
}
_LABEL_CHARACTERS = 20  # In a line of a label.
_GREY = "#595959"
_MOST_TICKS = 9

# The hues of Okabe and Ito, darkened until text in them has a contrast of 5 : 1 on white.
STYLES: tuple[dict[str, Any], ...] = (
  {"color": "#0072B2", "linestyle": "-", "marker": "o"},
  {"color": "#B34700", "linestyle": "--", "marker": "s"},
  {"color": "#007A5A", "linestyle": "-.", "marker": "^"},
  {"color": "#9C4B7C", "linestyle": ":", "marker": "D"},
  {"color": "#000000", "linestyle": (0, (8, 2, 1, 2, 1, 2)), "marker": "v"},
  {"color": "#8A6100", "linestyle": (0, (3, 1)), "marker": "P"},
)
# The styles of lines that have the same meaning in all figures.
INPUT, NEXT = 1, 0


@dataclasses.dataclass(frozen=True)
class Line:
  """A line of a panel.

  Attributes:
    label: the text at the end of the line.
    x: the horizontal positions of its points, increasing.
    y: the heights of its points; NaN stands for no point.
    style: the number of its style; after the last of STYLES they repeat.
    hollow: whether the line is thin with hollow markers, for a variant of another line.
    ends: the lower and upper ends of a band around the line; None: no band.
  """

  label: str
  x: np.ndarray
  y: np.ndarray
  style: int
  hollow: bool = False
  ends: tuple[np.ndarray, np.ndarray] | None = None


def panel(
  title: str, subtitle: str, size: tuple[float, float] = SIZE, note: str = ""
) -> tuple[Figure, Axes]:
  """Returns an empty panel of a size in inches, with a title at its top and a note at its foot.

  The title and the subtitle are what `plots.hide_title` hides.
  """
  characters = int(size[0] * 72 / (0.56 * LABEL))
  subtitle = subtitle.replace("n = ", "n\u00a0=\u00a0")  # Keeps it in one line.
  header = textwrap.wrap(subtitle, characters)
  height = (20 + 1.3 * LABEL * len(header)) / 72  # Inches.
  figure = Figure(figsize=size, dpi=150)
  figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - height / size[1]))
  # Names may hold $, so text is not parsed as formulas.
  left: dict[str, Any] = {"x": 0.08 / size[0], "ha": "left", "parse_math": False}
  top: dict[str, Any] = left | {"va": "top", "gid": TITLE}
  small: dict[str, Any] = {"fontsize": LABEL, "color": _GREY, "linespacing": 1.25}
  figure.text(y=1 - 5 / 72 / size[1], s=drawable(title), fontsize=12, fontweight="bold", **top)
  figure.text(y=1 - 21 / 72 / size[1], s=drawable("\n".join(header)), **small, **top)
  if note:
    figure.supxlabel(drawable("\n".join(textwrap.wrap(note, characters))), **small, **left)
  axes = figure.subplots()
  axes.spines[["top", "right"]].set_visible(False)
  return figure, axes


def draw_lines(
  axes: Axes, lines: Sequence[Line], unit: str, setup: Callable[[Axes], object]
) -> None:
  """Draws lines, each with its label at its end, in axes whose horizontal limits are set.

  The vertical axis has the label `unit`, and the function `setup` sets its scale and its limits.
  """
  axes.set_ylabel(unit)
  axes.grid(axis="y", alpha=0.25)
  for line in lines:
    style = STYLES[line.style % len(STYLES)]
    face = {"markerfacecolor": "white", "linewidth": 1} if line.hollow else {"linewidth": 1.8}
    every = max(1, len(line.x) // 12)
    if line.ends is not None:
      axes.fill_between(line.x, *line.ends, color=style["color"], alpha=0.2, linewidth=0)
    axes.plot(line.x, line.y, **style, **face, markersize=5, markevery=every, label=line.label)
  setup(axes)
  axes.get_ylim()  # Computes the limits, on which the places of labels depend.
  _label_ends(axes, [line for line in lines if np.isfinite(line.y).any()])


def _label_ends(axes: Axes, lines: Sequence[Line]) -> None:
  """Writes labels to the right of the axes, moved apart where they would overlap."""
  if not lines:
    return
  ends = [np.flatnonzero(np.isfinite(line.y))[-1] for line in lines]
  points = [(line.x[end], line.y[end]) for line, end in zip(lines, ends, strict=True)]
  to_fraction = axes.transData + axes.transAxes.inverted()
  heights = np.clip([to_fraction.transform(point)[1] for point in points], 0, 1)
  labels = [textwrap.fill(line.label, _LABEL_CHARACTERS) for line in lines]
  texts = np.array([1.15 * (label.count("\n") + 1) + 0.2 for label in labels])
  # The sizes are fractions of the height of the axes.
  sizes = texts * LABEL / 72 / (0.68 * axes.figure.bbox.height / axes.figure.dpi)
  placed = zip(lines, labels, points, apart(heights, sizes), strict=True)
  for line, label, point, height in placed:
    axes.annotate(
      drawable(label),
      xy=point,
      xytext=(1.02, height),
      textcoords="axes fraction",
      va="center",
      fontsize=LABEL,
      color=STYLES[line.style % len(STYLES)]["color"],
      annotation_clip=False,
      parse_math=False,
      arrowprops=_LEADER,
    )


def apart(heights: np.ndarray, sizes: np.ndarray) -> np.ndarray:
  """Returns the middles of labels, near to `heights` and in their order, so that none overlap.

  Heights and middles lie in 0..1; `sizes` are the heights of the labels. Where the labels do not
  fit, they touch and go beyond the top.
  """
  order = np.argsort(heights, kind="stable")
  ordered = sizes[order]
  least = np.concatenate([[0.0], np.cumsum((ordered[1:] + ordered[:-1]) / 2)])
  # Heights less the least places must not decrease: this is isotonic regression by pooling.
  pools: list[list[float]] = []
  for value in heights[order] - least:
    pools.append([value])
    while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
      last = pools.pop()
      pools[-1] += last
  moved = np.concatenate([[np.mean(pool)] * len(pool) for pool in pools])
  found = np.empty_like(heights)
  found[order] = np.clip(moved, 0, max(0, 1 - least[-1])) + least
  return found


def layer_axis(axes: Axes, layers: int) -> None:
  """Labels the horizontal axis with layers, each at the place where it ends."""
  axes.set_xticks(*_ticks(layers))
  axes.set_xlim(*_limits(layers))
  axes.set_xlabel("after layer (emb.: the embedding)")


def name_rows(axes: Axes, names: Sequence[str]) -> None:
  """Names the rows of `draw_row`, the first of which is at the top."""
  axes.set_yticks(range(len(names)), [drawable(name) for name in names], fontsize=LABEL)
  for label in axes.get_yticklabels():
    label.set_parse_math(False)
  axes.set_ylim(len(names) - 0.5, -0.5)
  axes.grid(axis="x", alpha=0.25)


def layer_heights(axes: Axes, layers: int) -> None:
  """Labels the vertical axis with layers, each at the place where it ends."""
  axes.set_yticks(*_ticks(layers))
  axes.set_ylim(*_limits(layers))


def _ticks(layers: int) -> tuple[list[int], list[str]]:
  step = -(-layers // _MOST_TICKS)
  # The last layer is always among them, and the first has room beside the embedding.
  shown = [n for n in range((layers - 1) % step, layers, step) if n + 1 >= step]
  return [0, *(layer + 1 for layer in shown)], ["emb.", *map(str, shown)]


def _limits(layers: int) -> tuple[float, float]:
  return -0.02 * layers, 1.02 * layers


def relative_axis(axes: Axes) -> None:
  """Labels the horizontal axis with shares of the depth, to compare models of different depth."""
  axes.set_xlim(-0.02, 1.02)
  axes.set_xlabel("relative depth (0: embedding, 1: last layer)")


def draw_shift(axes: Axes, alignment: Alignment, shift: Shift | None) -> None:
  """Marks where the input token is lost and the next one emerges, and the stretch between them.

  Bands around both lines are confidence intervals, and the stretch is hatched.
  """
  if shift is None:
    return
  x = places(alignment)
  for number, found in ((INPUT, shift.departure), (NEXT, shift.emergence)):
    if found.index is not None:
      style = STYLES[number]
      axes.axvspan(*interval(x, found), color=style["color"], alpha=0.15, linewidth=0)
      axes.axvline(x[found.index], color=style["color"], linestyle=style["linestyle"], linewidth=1)
  if shift.unread.index and shift.departure.index is not None and shift.emergence.index is not None:
    ends = x[shift.departure.index], x[shift.emergence.index]
    axes.axvspan(*ends, facecolor="none", edgecolor="#DDDDDD", hatch="//", linewidth=0, zorder=0)


def draw_row(axes: Axes, x: np.ndarray, row: int, shift: Shift | None) -> None:
  """Draws a shift as a row at depth positions x [P]: up to where the input token is read, from
  where on the next one emerges, and dots between them, where neither is read.

  Bars are confidence intervals, a thin line spans 10 to 90%, and a diamond marks the crossing: it
  is hollow where neither token is read.
  """
  if shift is None or unclaimed(shift):
    axes.text(x[0], row, unclaimed(shift), va="center", fontsize=LABEL, style="italic")
    return
  departure, emergence = shift.departure, shift.emergence
  if departure.is_absent or departure.index is not None:
    _draw_span(axes, (x[0], x[-1 if departure.index is None else departure.index]), row, INPUT)
  if emergence.index is not None:
    _draw_span(axes, (x[emergence.index], x[-1]), row, NEXT)
    if departure.index is not None and departure.index < emergence.index:
      ends = x[departure.index], x[emergence.index]
      axes.plot(ends, [row, row], color="#777777", linestyle=":", linewidth=1.2, zorder=0)
  if shift.onset.index is not None and shift.completion.index is not None:
    ends = x[shift.onset.index], x[shift.completion.index]
    axes.plot(ends, [row + 0.22] * 2, color=STYLES[NEXT]["color"], linewidth=1, marker="|")
  for number, found in ((INPUT, departure), (NEXT, emergence)):
    # An input token that is read nowhere has no place of its own.
    if not (found.is_absent or (number == INPUT and found.index == 0)):
      _draw_estimate(axes, x, row, found, number)
  for found, face in ((shift.crossing, "#000000"), (shift.unread_crossing, "none")):
    if found.index is not None:
      axes.plot(x[found.index], row, "D", color="#000000", markerfacecolor=face, markersize=5)


def _draw_span(axes: Axes, ends: tuple[float, float], row: int, number: int) -> None:
  style = STYLES[number]
  axes.plot(ends, [row, row], color=style["color"], linestyle=style["linestyle"], linewidth=3,
            alpha=0.45, solid_capstyle="butt")  # fmt: skip


def _draw_estimate(axes: Axes, x: np.ndarray, row: int, found: Estimate, number: int) -> None:
  style = STYLES[number]
  axes.plot(interval(x, found), [row, row], color=style["color"], marker="|", markersize=9)
  if found.index is not None:
    axes.plot(x[found.index], row, color=style["color"], marker=style["marker"], markersize=7)
