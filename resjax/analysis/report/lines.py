"""Panels of lines that are told apart without colour: by dashes, markers and labels at their ends.

A panel is small enough to be read on a telephone and says itself what it is of.
"""

import dataclasses
import textwrap
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SIZE = (5.0, 3.8)  # inches: letters are still legible where it is 370 pixels wide
LABEL = 8.5  # points
_LEADER = {
  "arrowstyle": "-",
  "color": "#BBBBBB",
  "linewidth": 0.7,
  "shrinkB": 3,
  "relpos": (0, 0.5),
}
_LABEL_CHARACTERS = 20  # in a line of a label
_GREY = "#595959"

# Okabe and Ito's hues, darkened until text in them has a contrast of 5 : 1 on white.
STYLES = (
  {"color": "#0072B2", "linestyle": "-", "marker": "o"},
  {"color": "#B34700", "linestyle": "--", "marker": "s"},
  {"color": "#007A5A", "linestyle": "-.", "marker": "^"},
  {"color": "#9C4B7C", "linestyle": ":", "marker": "D"},
  {"color": "#000000", "linestyle": (0, (8, 2, 1, 2, 1, 2)), "marker": "v"},
  {"color": "#8A6100", "linestyle": (0, (3, 1)), "marker": "P"},
)


@dataclasses.dataclass(frozen=True)
class Line:
  """A line of a panel.

  Attributes:
    label: that stands at its end.
    x: where its points are; increasing.
    y: their heights; NaN: no point.
    style: number of its style in STYLES, from where they repeat.
    hollow: whether its markers are outlines and the line is thin: a second reading of another one.
  """

  label: str
  x: np.ndarray
  y: np.ndarray
  style: int
  hollow: bool = False


def panel(
  title: str, subtitle: str, size: tuple[float, float] = SIZE, note: str = ""
) -> tuple[Figure, Axes]:
  """Returns an empty panel.

  Args:
    title: what it shows.
    subtitle: of what: model, corpus, number of tokens.
    size: inches.
    note: one more line.
  """
  characters = int(size[0] * 72 / (0.56 * LABEL))
  subtitle = subtitle.replace("n = ", "n\u00a0=\u00a0")  # is not broken there
  header = textwrap.wrap(subtitle, characters) + textwrap.wrap(note, characters)
  height = (20 + 1.3 * LABEL * len(header)) / 72  # inches
  figure = Figure(figsize=size, dpi=150)
  figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - height / size[1]))
  top = {"x": 0.08 / size[0], "va": "top", "ha": "left", "parse_math": False}  # names may have $
  figure.text(y=1 - 5 / 72 / size[1], s=title, fontsize=12, fontweight="bold", **top)
  below = 1 - 21 / 72 / size[1]
  figure.text(y=below, s="\n".join(header), fontsize=LABEL, color=_GREY, linespacing=1.25, **top)
  axes = figure.subplots()
  axes.spines[["top", "right"]].set_visible(False)
  return figure, axes


def draw(axes: Axes, lines: Sequence[Line], setup: Callable[[Axes], None]) -> None:
  """Draws lines, each with its label at its end.

  Args:
    axes: whose horizontal limits are set.
    lines: what to draw.
    setup: sets scale and limits of the vertical axis.
  """
  axes.grid(axis="y", alpha=0.25)
  for line in lines:
    style = STYLES[line.style % len(STYLES)]
    face = {"markerfacecolor": "white", "linewidth": 1} if line.hollow else {"linewidth": 1.8}
    every = max(1, len(line.x) // 12)
    axes.plot(line.x, line.y, **style, **face, markersize=5, markevery=every, label=line.label)
  setup(axes)
  axes.get_ylim()  # works out the limits, which places of labels depend on
  _label_ends(axes, [line for line in lines if np.isfinite(line.y).any()])


def _label_ends(axes: Axes, lines: Sequence[Line]) -> None:
  """Labels stand to the right of the axes, moved apart where they would overlap."""
  if not lines:
    return
  ends = [np.flatnonzero(np.isfinite(line.y))[-1] for line in lines]
  points = [(line.x[end], line.y[end]) for line, end in zip(lines, ends, strict=True)]
  to_fraction = axes.transData + axes.transAxes.inverted()
  heights = np.clip([to_fraction.transform(point)[1] for point in points], 0, 1)
  labels = [textwrap.fill(line.label, _LABEL_CHARACTERS) for line in lines]
  texts = np.array([1.15 * (label.count("\n") + 1) + 0.2 for label in labels])
  # In parts of the height of the axes.
  sizes = texts * LABEL / 72 / (0.68 * axes.figure.get_figheight())
  placed = zip(lines, labels, points, apart(heights, sizes), strict=True)
  for line, label, point, height in placed:
    axes.annotate(
      label,
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
  """Returns middles of labels in the order of `heights` that do not overlap, as near as may be.

  They lie in 0..1; where they do not fit, they are as close as they can be and leave it at the top.

  Args:
    heights: where the middles should be, in 0..1.
    sizes: of the labels.
  """
  order = np.argsort(heights, kind="stable")
  ordered = sizes[order]
  least = np.concatenate([[0.0], np.cumsum((ordered[1:] + ordered[:-1]) / 2)])
  # Heights less their least places must not decrease: isotonic regression by pooling neighbours.
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
