"""Plots of runs and of sweeps, as PNG files."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from resjax import locations
from resjax.locations import Location

# The palette of Okabe and Ito, whose colours can be told apart with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":", "-.", (0, (8, 2, 1, 2, 1, 2)), (0, (1, 4)))

FINAL = "validation loss at the end (bits per byte)"

_SPACES = "\n\u00a0"

Records = Sequence[Mapping[str, Any]]


def plain(text: str) -> str:
  """Returns a text such that matplotlib draws it as it is, where `$` would begin a formula."""
  return drawable(text).replace("$", r"\$")


def drawable(text: str) -> str:
  """Returns a text in which what no font has is spelled out: control characters, broken UTF-8."""
  kept = (c if c.isprintable() or c in _SPACES else c.encode("unicode_escape") for c in text)
  return "".join(c if isinstance(c, str) else c.decode() for c in kept)


def training_curves(records: Records, title: str, path: Location) -> None:
  """Draws training loss and validation bits per byte over the steps of a run into a PNG file."""
  figure = Figure(figsize=(10, 4), layout="constrained")
  left, right = figure.subplots(1, 2)
  _curve(left, records, "train/loss", COLOURS[0], "training loss (nats per token)")
  _curve(
    right, records, "validation/bits_per_byte", COLOURS[1], "validation (bits per byte)", marker="o"
  )
  figure.suptitle(plain(title))
  save(figure, path)


def sweep_dots(
  panels: Mapping[str, Mapping[str, float | None]], reference: str, title: str, path: Location
) -> None:
  """Draws results of runs as dots, one panel per kind of result, into a PNG file.

  Args:
    panels: for each label of a panel the results of the runs by name, None for a run that has no
      such result; all panels have the same runs.
    reference: the name of the run whose results are marked by a line.
    title: the title of the figure.
    path: the file to write.
  """
  runs = max(map(len, panels.values()))
  size = (2 + 3.2 * len(panels), 1.6 + 0.28 * runs)
  figure = Figure(figsize=size, layout="constrained")
  for axes, (label, values) in zip(
    figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True
  ):
    if values.get(reference) is not None:
      number = f"{plain(reference)}: {values[reference]:,.6g}"
      axes.axvline(values[reference], color=COLOURS[6], linestyle="--", label=number)
      axes.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    axes.plot(
      list(values.values()),
      [plain(name) for name in values],
      color=COLOURS[0],
      marker="o",
      linestyle="",
    )
    axes.set_xlabel(label)
    axes.locator_params(axis="x", nbins=4)  # More labels would overlap.
    axes.grid(alpha=0.3)
  axes.invert_yaxis()
  figure.suptitle(plain(title))
  save(figure, path)


def sweep_curves(
  curves: Mapping[str, Sequence[tuple[float, float]]],
  levels: Mapping[str, float],
  across: str,
  title: str,
  path: Location,
) -> None:
  """Draws curves of bits per byte, and single runs as horizontal lines, into a PNG file.

  Args:
    curves: for each label the points (x, bits per byte).
    levels: the bits per byte of the single runs, by name.
    across: the label of the horizontal axis.
    title: the title of the figure.
    path: the file to write.
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
  figure.suptitle(plain(title))
  save(figure, path)


def score_curves(
  panels: Mapping[str, Mapping[str, Sequence[tuple[float, float, float]]]],
  title: str,
  path: Location,
) -> None:
  """Draws scores of checkpoints over steps with bars of one standard error, into a PNG file.

  Args:
    panels: for each label of a panel the points (step, score, standard error) of runs by name.
    title: the title of the figure.
    path: the file to write.
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
  figure.suptitle(plain(title))
  save(figure, path)


def save(figure: Figure, path: Location) -> None:
  """Writes a figure as PNG, without a display; a link at its place is replaced."""
  drawn = io.BytesIO()
  FigureCanvasAgg(figure).print_png(drawn)
  locations.write_bytes(path, drawn.getvalue())


def _curve(axes: Axes, records: Records, key: str, colour: str, label: str, **style: Any) -> None:
  points = [(r["step"], r[key]) for r in records if r.get(key) is not None]
  axes.plot(*zip(*points, strict=True) if points else ([], []), color=colour, **style)
  axes.set_xlabel("step")
  axes.set_ylabel(label)
  axes.grid(alpha=0.3)
