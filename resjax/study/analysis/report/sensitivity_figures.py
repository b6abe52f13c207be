"""Figures of a sensitivity: the loss and the shift of a model when its residual path is cut."""

import functools

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resjax.study.analysis import depth_positions
from resjax.study.analysis.alignment import Alignment
from resjax.study.analysis.report import panels
from resjax.study.analysis.report.panels import Line
from resjax.study.analysis.sensitivity import Sensitivity
from resjax.study.statistics import t_quantile

_LINEAR_BELOW = 0.1  # Nats; above it the scale is logarithmic.


def loss_curves(found: Sensitivity, alignment: Alignment) -> Figure:
  """Draws how much the loss grows over the layer that is cut, with a line per alpha.

  The alignment is that of the same model, whose shift the figure marks.
  """
  note = f"uncut: {found.baseline_loss:.4f} nats per token; bands: 95 %"
  made, axes = _panel(
    found, "Loss when a layer is cut", note, depth_positions.num_layers(alignment)
  )
  x = np.array(found.layers) + 1.0  # The places where the layers end.
  above = np.where(np.isfinite(found.loss), found.loss - found.baseline_loss, np.nan)
  half = t_quantile(found.num_rows - 1) * found.errors
  ends = [above - half, above + half]
  chosen = [
    Line(f"alpha {alpha:g}", x, above[:, i], i, ends=(ends[0][:, i], ends[1][:, i]))
    for i, alpha in enumerate(found.alphas)
  ]
  panels.draw_lines(axes, chosen, "loss above uncut (nats per token)", _setup)
  panels.draw_shift(axes, alignment, depth_positions.shift_of(alignment))
  return made


def emergence_curves(found: Sensitivity) -> Figure | None:
  """Draws where the next token emerges over the layer that is cut, with a line per alpha.

  Returns None if it was not measured.
  """
  whole = found.baseline_alignment
  if whole is None:
    return None
  uncut = depth_positions.emergence_text(whole, depth_positions.shift_of(whole))
  depth = depth_positions.num_layers(whole)
  made, axes = _panel(found, "Emergence when a layer is cut", f"uncut: {uncut}", depth)
  x = np.array(found.layers) + 1.0
  heights = np.array([[_height(one) for one in row] for row in found.alignments])
  chosen = [Line(f"alpha {alpha:g}", x, heights[:, i], i) for i, alpha in enumerate(found.alphas)]
  chosen.append(Line("uncut", x, np.full(len(x), _height(whole)), len(chosen), hollow=True))
  setup = functools.partial(panels.layer_heights, layers=depth)
  panels.draw_lines(axes, chosen, "next token emerges after layer", setup)
  return made


def _panel(found: Sensitivity, title: str, note: str, depth: int) -> tuple[Figure, Axes]:
  """Returns an empty panel over the layer that is cut."""
  subtitle = f"{found.model}  |  {found.corpus}  |  n = {found.num_tokens:,} tokens"
  made, axes = panels.panel(title, subtitle, note=f"{' and '.join(found.sites)} cut; {note}")
  panels.layer_axis(axes, depth)
  axes.set_xlabel("layer that is cut")
  return made, axes


def _height(alignment: Alignment) -> float:
  """Returns the number of layers before the next token emerges, or NaN if it does not."""
  shift = depth_positions.shift_of(alignment)
  if shift is None or shift.emergence.index is None:
    return np.nan
  return depth_positions.places(alignment)[shift.emergence.index]


def _setup(axes: Axes) -> None:
  axes.set_yscale("symlog", linthresh=_LINEAR_BELOW)
  axes.yaxis.set_major_formatter("{x:g}")
  axes.axhline(0, color="#888888", linewidth=0.8)
