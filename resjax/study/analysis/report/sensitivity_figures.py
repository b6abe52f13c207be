"""Figures of a sensitivity: the loss and the switch of a model when its residual path is cut."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resjax.study.analysis import depth_positions
from resjax.study.analysis.alignment import Alignment, Switch
from resjax.study.analysis.report import panels
from resjax.study.analysis.report.panels import Line
from resjax.study.analysis.sensitivity import Sensitivity

_LINEAR_BELOW = 0.1  # Nats; above it the scale is logarithmic.


def loss_curves(found: Sensitivity, alignment: Alignment, switch: Switch | None) -> Figure:
  """Draws how much the loss grows over the layer that is cut, with a line per alpha.

  The alignment is that of the same model, whose switch the figure marks.
  """
  subtitle = f"{found.model}  |  {found.corpus}  |  n = {found.num_tokens:,} tokens"
  note = f"{' and '.join(found.sites)} cut; uncut: {found.baseline_loss:.4f} nats per token"
  made, axes = panels.panel("Loss when a layer is cut", subtitle, note=note)
  x = np.array(found.layers) + 1.0  # The places where the layers end.
  above = np.where(np.isfinite(found.loss), found.loss - found.baseline_loss, np.nan)
  labels = [f"alpha {alpha:g}" for alpha in found.alphas]
  chosen = [Line(label, x, above[:, i], i) for i, label in enumerate(labels)]
  panels.layer_axis(axes, depth_positions.num_layers(alignment))
  axes.set_xlabel("layer that is cut")
  axes.set_ylabel("loss above uncut (nats per token)")
  panels.draw_lines(axes, chosen, _setup)
  panels.draw_switch(axes, alignment, switch)
  return made


def switch_curves(found: Sensitivity) -> Figure | None:
  """Draws the switch over the layer that is cut, with a line per alpha; None if not measured."""
  whole = found.baseline_alignment
  if whole is None:
    return None
  subtitle = f"{found.model}  |  {found.corpus}  |  n = {found.num_tokens:,} tokens"
  note = (
    f"{' and '.join(found.sites)} cut; uncut: {depth_positions.switch_text(whole, _switch(whole))}"
  )
  made, axes = panels.panel("The switch when a layer is cut", subtitle, note=note)
  x = np.array(found.layers) + 1.0
  heights = np.array([[_height(one) for one in row] for row in found.alignments])
  labels = [f"alpha {alpha:g}" for alpha in found.alphas]
  chosen = [Line(label, x, heights[:, i], i) for i, label in enumerate(labels)]
  chosen.append(Line("uncut", x, np.full(len(x), _height(whole)), len(labels), hollow=True))
  depth = depth_positions.num_layers(whole)
  panels.layer_axis(axes, depth)
  axes.set_xlabel("layer that is cut")
  axes.set_ylabel("switch after layer")
  panels.draw_lines(axes, chosen, lambda axes: panels.layer_heights(axes, depth))
  return made


def _switch(alignment: Alignment) -> Switch | None:
  return next(iter(alignment.readings.values()))["all"].switch


def _height(alignment: Alignment) -> float:
  """Returns the number of layers before the switch, or NaN if there is none."""
  switch = _switch(alignment)
  if switch is None or switch.index is None:
    return np.nan
  return depth_positions.places(alignment)[switch.index]


def _setup(axes: Axes) -> None:
  axes.set_yscale("symlog", linthresh=_LINEAR_BELOW)
  axes.yaxis.set_major_formatter("{x:g}")
  axes.axhline(0, color="#888888", linewidth=0.8)
