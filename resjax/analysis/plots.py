"""Plots of runs; every figure says what it shows and of what."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's palette, which readers with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

Records = Sequence[Mapping[str, Any]]


def training_curves(records: Records, title: str, path: Path) -> None:
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


def save(figure: Figure, path: Path) -> None:
  """Writes a figure as PNG, without a display."""
  path.parent.mkdir(parents=True, exist_ok=True)
  FigureCanvasAgg(figure).print_png(path)


def _curve(axes, records: Records, key: str, colour: str, label: str, **style) -> None:
  points = [(r["step"], r[key]) for r in records if r.get(key) is not None]
  axes.plot(*zip(*points, strict=True) if points else ([], []), color=colour, **style)
  axes.set_xlabel("step")
  axes.set_ylabel(label)
  axes.grid(alpha=0.3)
