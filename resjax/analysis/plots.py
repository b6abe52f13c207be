"""Plots of runs; every figure says what it shows and of what."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from resjax.locations import Location

# Okabe and Ito's palette, which readers with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":", "-.", (0, (8, 2, 1, 2, 1, 2)), (0, (1, 4)))

FINAL = "validation loss at the end (bits per byte)"

Records = Sequence[Mapping[str, Any]]


def training_curves(records: Records, title: str, path: Location) -> None:
  """Draws training loss and validation bits per byte over steps into a PNG file.

  Args:
    records: of `read_metrics`.
    title: what run it is.
    path: of the file; its folder is made when missing.
  """
  figure = Figure(figsize=(10, 4), layout="constrained")
  left, right = figure.subplots(1, 2)
  _curve(left, records, "train/loss", COLOURS[0], "training loss (nats per token)")
  _curve(
    right, records, "validation/bits_per_byte", COLOURS[1], "validation (bits per byte)", marker="o"
  )
  figure.suptitle(title)
  save(figure, path)


def sweep_dots(
  panels: Mapping[str, Mapping[str, float | None]], reference: str, title: str, path: Location
) -> None:
  """Draws numbers of runs as dots, one panel per kind, the reference as a line, into a PNG file.

  Args:
    panels: label with unit to name of a run to its number (None: no dot), in the order of the
      plot; all panels have the same runs.
    reference: name of the run to compare with; no line where it has no number.
    title: what sweep it is.
    path: of the file.
  """
  runs = max(map(len, panels.values()))
  size = (2 + 3.2 * len(panels), 1.6 + 0.28 * runs)
  figure = Figure(figsize=size, layout="constrained")
  for axes, (label, values) in zip(
    figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True
  ):
    if values.get(reference) is not None:
      number = f"{reference}: {values[reference]:,.6g}"
      axes.axvline(values[reference], color=COLOURS[6], linestyle="--", label=number)
      axes.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    axes.plot(list(values.values()), list(values), color=COLOURS[0], marker="o", linestyle="")
    axes.set_xlabel(label)
    axes.locator_params(axis="x", nbins=4)  # more long numbers would run into each other
    axes.grid(alpha=0.3)
  axes.invert_yaxis()
  figure.suptitle(title)
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
    curves: label to points (x, bits per byte).
    levels: name of a run to its bits per byte; the first is the reference.
    across: what x is.
    title: what sweep it is.
    path: of the file.
  """
  figure = Figure(figsize=(9, 5), layout="constrained")
  axes = figure.subplots()
  for i, (label, points) in enumerate(curves.items()):
    colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
    axes.plot(*zip(*sorted(points), strict=True), color=colour, marker=marker, label=label)
  for i, (label, value) in enumerate(levels.items()):
    colour, dashes = COLOURS[(6 - i) % len(COLOURS)], DASHES[i % len(DASHES)]
    axes.axhline(value, color=colour, linestyle=dashes, label=f"{label}: {value:.4f}")
  axes.set_xlabel(across)
  figure.legend(loc="outside right upper", frameon=False)
  axes.set_ylabel(FINAL)
  axes.grid(alpha=0.3)
  figure.suptitle(title)
  save(figure, path)


def save(figure: Figure, path: Location) -> None:
  """Writes a figure as PNG, without a display."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with path.open("wb") as file:
    FigureCanvasAgg(figure).print_png(file)


def _curve(axes, records: Records, key: str, colour: str, label: str, **style) -> None:
  points = [(r["step"], r[key]) for r in records if r.get(key) is not None]
  axes.plot(*zip(*points, strict=True) if points else ([], []), color=colour, **style)
  axes.set_xlabel("step")
  axes.set_ylabel(label)
  axes.grid(alpha=0.3)
