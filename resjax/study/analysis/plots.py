"""Plots of runs and of sweeps, as PNG files, and as SVG and PDF where they are asked for."""

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from resjax.base import Location, locations
from resjax.study.statistics import mean_interval

# The palette of Okabe and Ito, whose colours can be told apart with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":", "-.", (0, (8, 2, 1, 2, 1, 2)), (0, (1, 4)))

TITLE = "title"  # the gid of texts that are the title of a figure

# The same figure gives the same bytes; PDF files hold their letters as text.
_RC: Any = {"svg.hashsalt": "resjax", "svg.fonttype": "path", "pdf.fonttype": 42}
_DPI = 200
# The files of a figure, and what to say of each so that it has no date.
KINDS: dict[str, dict[str, Any]] = {
  "png": {},
  "svg": {"Date": None},
  "pdf": {"CreationDate": None},
}
# The variable that names kinds to write beside PNG: --figures of a command, also for the processes
# that it starts.
WANTED = "RESJAX_FIGURES"

FINAL = "validation loss at the end\n(bits per byte)"

# The metrics of a run that are drawn: labels and styles.
TRAINING: Mapping[str, tuple[str, dict[str, Any]]] = {
  "train/loss": ("training loss (nats per token)", {"color": COLOURS[0]}),
  "validation/bits_per_byte": ("validation (bits per byte)", {"color": COLOURS[1], "marker": "o"}),
}

_LETTER = 0.03  # the width of a letter beside a mark, as a share of the axis

_SPACES = "\n\u00a0"

Records = Sequence[Mapping[str, Any]]
Marks = Sequence[tuple[float, str]]


def plain(text: str) -> str:
  """Returns a text that matplotlib draws literally, with `$` escaped."""
  return drawable(text).replace("$", r"\$")


def drawable(text: str) -> str:
  """Returns a text in which what no font has is spelled out: control characters, broken UTF-8."""
  kept = (c if c.isprintable() or c in _SPACES else c.encode("unicode_escape") for c in text)
  return "".join(c if isinstance(c, str) else c.decode() for c in kept)


def training_figure(records: Records, marks: Marks = ()) -> Figure:
  """Draws training loss and validation bits per byte over the steps of a run; see `curve`."""
  figure = Figure(figsize=(11, 4), layout="constrained")
  for axes, key in zip(figure.subplots(1, 2), TRAINING, strict=True):
    _curve(axes, records, key, marks)
  return figure


def curve(records: Records, key: str, marks: Marks = ()) -> Figure:
  """Draws one of the metrics of `TRAINING` over the steps of a run.

  Args:
    records: the records of the run.
    key: the metric.
    marks: steps where something changed, which lines mark, with a short text each.
  """
  figure = Figure(figsize=(5, 3.8), layout="constrained")
  _curve(figure.subplots(), records, key, marks)
  return figure


def sweep_dots(
  panels: Mapping[str, Mapping[str, Sequence[float]]], reference: str, title: str
) -> Figure:
  """Draws results of arms as dots, one panel per kind of result, two beside each other.

  Wider figures would be cut on a telephone, or too small to read.

  Args:
    panels: for each label of a panel the results of each arm, one per seed; empty for an arm that
      has no such result. All panels have the same arms. With several seeds a dot is their mean, and
      a bar its 95 % interval.
    reference: the name of the arm whose results are marked by a line.
    title: the title of the figure.
  """
  runs = max(map(len, panels.values()))
  letters = max((len(name) for values in panels.values() for name in values), default=0)
  columns = min(2, len(panels))
  rows = -(-len(panels) // columns)
  size = (0.5 + 0.09 * letters + 2.3 * columns, (1.2 + 0.28 * runs) * rows)
  figure = Figure(figsize=size, layout="constrained")
  every = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
  for axes in every[len(panels) :]:
    axes.remove()
  for axes, (label, values) in zip(every, panels.items(), strict=False):
    _dots(axes, values)
    if values.get(reference):
      middle = float(np.mean(values[reference]))
      axes.axvline(middle, color=COLOURS[6], linestyle="--", zorder=0)
    axes.set_xlabel(label)
    axes.locator_params(axis="x", nbins=4)  # More labels would overlap.
    # Labels hold whole numbers; matplotlib would write what they share, or 1e6, over the label.
    axes.ticklabel_format(axis="x", useOffset=False)
    if max((abs(v) for found in values.values() for v in found), default=0) >= 1000:
      axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
  set_title(figure, title)
  return figure


def _dots(axes: Axes, values: Mapping[str, Sequence[float]]) -> None:
  """Draws the mean of each arm's values, with its interval if there are several values."""
  axes.set_yticks(range(len(values)), [plain(name) for name in values])
  axes.set_ylim(len(values) - 0.5, -0.5)  # the first one is at the top
  for row, found in enumerate(values.values()):
    if not found:
      continue
    mean = float(np.mean(found))
    ends = mean_interval(found) or (mean, mean)
    bars = [[mean - ends[0]], [ends[1] - mean]]
    axes.errorbar(mean, row, xerr=bars, color=COLOURS[0], marker="o", capsize=3)


def sweep_curves(
  curves: Mapping[str, Sequence[tuple[float, float]]],
  levels: Mapping[str, float],
  across: str,
  title: str,
) -> Figure:
  """Draws curves of bits per byte, and single runs as horizontal lines.

  Args:
    curves: for each label the points (x, bits per byte).
    levels: the bits per byte of the single runs, by name.
    across: the label of the horizontal axis.
    title: the title of the figure.
  """
  figure = Figure(figsize=(9, 5), layout="constrained")
  axes = figure.subplots()
  for i, (label, points) in enumerate(curves.items()):
    colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
    axes.plot(*zip(*sorted(points), strict=True), color=colour, marker=marker, label=plain(label))
  for i, (label, value) in enumerate(levels.items()):
    colour, dashes = COLOURS[(6 - i) % len(COLOURS)], DASHES[i % len(DASHES)]
    axes.axhline(value, color=colour, linestyle=dashes, label=f"{plain(label)}: {value:.4f}")
  axes.set_xlabel(plain(across))
  figure.legend(loc="outside right upper", frameon=False)
  axes.set_ylabel(FINAL)
  axes.grid(alpha=0.3)
  set_title(figure, title)
  return figure


def score_curves(
  panels: Mapping[str, Mapping[str, Sequence[tuple[float, float, float]]]],
) -> Figure:
  """Draws scores of checkpoints over steps with bars of one standard error.

  Args:
    panels: for each label of a panel the points (step, score, standard error) of runs by name.
  """
  across = min(3, len(panels))
  down = -(-len(panels) // across)
  figure = Figure(figsize=(2 + 4 * across, 1 + 3.2 * down), layout="constrained")
  grid = figure.subplots(down, across, squeeze=False).ravel()
  for axes, (label, curves) in zip(grid, panels.items(), strict=False):
    for i, (name, points) in enumerate(curves.items()):
      steps, scores, errors = zip(*sorted(points), strict=True)
      colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
      axes.errorbar(
        steps, scores, errors, color=colour, marker=marker, capsize=3, label=plain(name)
      )
    axes.set_title(plain(label))
    axes.set_xlabel("step")
    axes.locator_params(axis="x", nbins=6, integer=True)
    axes.grid(alpha=0.3)
  for axes in grid[len(panels) :]:
    axes.set_axis_off()
  handles, names = grid[0].get_legend_handles_labels()
  figure.legend(handles, names, loc="outside lower center", frameon=False)
  return figure


def set_title(figure: Figure, title: str) -> None:
  """Writes a title above a figure, which `save` hides unless it is asked for."""
  figure.suptitle(plain(title), gid=TITLE)


def save(figure: Figure, path: Location, *, titles: bool = False, keep: bool = False) -> None:
  """Writes a figure as PNG with 200 dots per inch, and in the kinds that are asked for.

  No display is needed.

  Args:
    figure: the figure; its texts with the gid `TITLE` are shown with `titles` alone.
    path: the place of the PNG file, beside which others stand; links there are replaced.
    titles: whether the title is part of the figure.
    keep: whether existing files are left unchanged.
  """
  if not titles:
    hide_title(figure)
  further = os.environ.get(WANTED, "").split(",")
  for kind in (kind for kind in KINDS if kind == "png" or kind in further):
    file = path.with_suffix(f".{kind}")
    if not (keep and file.exists()):
      locations.write_bytes(file, render(figure, kind))


def render(figure: Figure, kind: str) -> bytes:
  """Returns a figure as the content of a file of a kind (png, svg or pdf), the same every time."""
  drawn = io.BytesIO()
  with matplotlib.rc_context(_RC):
    _lay_out(figure)
    figure.savefig(drawn, format=kind, dpi=_DPI, metadata=KINDS[kind])
  return drawn.getvalue()


def hide_title(figure: Figure) -> None:
  """Hides the title of a figure, and gives its room to the axes."""
  titles = [text for text in figure.texts if text.get_gid() == TITLE and text.get_visible()]
  for text in titles:
    text.set_visible(False)
  if titles:
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1))


def _lay_out(figure: Figure) -> None:
  """Places axes and texts once for all kinds of file: to do it for each takes a third more."""
  if figure.get_layout_engine() is not None:
    figure.draw_without_rendering()
    figure.set_layout_engine(None)


def _curve(axes: Axes, records: Records, key: str, marks: Marks) -> None:
  points = [(r["step"], r[key]) for r in records if r.get(key) is not None]
  label, style = TRAINING[key]
  axes.plot(*zip(*points, strict=True) if points else ([], []), **style)
  for step, _ in marks:
    axes.axvline(step, color=COLOURS[6], linestyle=":", zorder=0)
  for step, text in _apart(marks, _LETTER * np.ptp(axes.get_xlim())):
    # Above the axes, where no curve is.
    axes.annotate(
      plain(text),
      (step, 1),
      (0, 2),
      xycoords=axes.get_xaxis_transform(),
      textcoords="offset points",
      ha="left",
      fontsize="small",
    )
  axes.set_xlabel("step")
  axes.set_ylabel(label)
  axes.grid(alpha=0.3)


def _apart(marks: Marks, letter: float) -> list[tuple[float, str]]:
  """Returns the texts of marks with their places; of those too close the first and the last one."""
  groups: list[list[tuple[float, str]]] = []
  for mark in sorted(marks, key=lambda mark: mark[0]):
    if groups and mark[0] - groups[-1][0][0] < letter * (len(_span(groups[-1])) + 1):
      groups[-1].append(mark)
    else:
      groups.append([mark])
  return [(group[0][0], _span(group)) for group in groups]


def _span(group: Marks) -> str:
  texts = dict.fromkeys((group[0][1], group[-1][1]))
  return "-".join(texts)
