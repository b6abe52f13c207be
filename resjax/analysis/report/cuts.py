"""The sensitivity curves: what a model loses where its residual path is cut."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resjax.analysis import depth_positions
from resjax.analysis.alignment import Alignment, Switch
from resjax.analysis.report import axis, lines
from resjax.analysis.report.lines import Line
from resjax.analysis.sensitivity import Sensitivity

_SMALL = 0.1  # nats, below which the scale is linear


def loss_curves(found: Sensitivity, alignment: Alignment, switch: Switch | None) -> Figure:
  """Draws the loss above that of the whole model over the layer that is cut, a line per alpha.

  Args:
    found: what was measured.
    alignment: of the same model.
    switch: of it, to be drawn too.
  """
  subtitle = f"{found.model}  |  {found.corpus}  |  n = {found.num_tokens:,} tokens"
  note = f"{' and '.join(found.sites)} cut; uncut: {found.baseline_loss:.4f} nats per token"
  made, axes = lines.panel("Loss when a layer is cut", subtitle, note=note)
  x = np.array(found.layers) + 1.0  # where the layer is completed, as in the other figures
  above = np.where(np.isfinite(found.loss), found.loss - found.baseline_loss, np.nan)
  labels = [f"alpha {alpha:g}" for alpha in found.alphas]
  chosen = [Line(label, x, above[:, i], i) for i, label in enumerate(labels)]
  axis.layer_axis(axes, depth_positions.num_layers(alignment))
  axes.set_xlabel("layer that is cut")
  axes.set_ylabel("loss above uncut (nats per token)")
  lines.draw(axes, chosen, _setup)
  axis.draw_switch(axes, alignment, switch)
  return made


def switch_curves(found: Sensitivity) -> Figure | None:
  """Draws where the switch is over the layer that is cut, a line per alpha; None: not measured."""
  whole = found.baseline_alignment
  if whole is None:
    return None
  subtitle = f"{found.model}  |  {found.corpus}  |  n = {found.num_tokens:,} tokens"
  note = (
    f"{' and '.join(found.sites)} cut; uncut: {depth_positions.switch_text(whole, _switch(whole))}"
  )
  made, axes = lines.panel("The switch when a layer is cut", subtitle, note=note)
  x = np.array(found.layers) + 1.0
  heights = np.array([[_height(one) for one in row] for row in found.alignments])
  labels = [f"alpha {alpha:g}" for alpha in found.alphas]
  chosen = [Line(label, x, heights[:, i], i) for i, label in enumerate(labels)]
  chosen.append(Line("uncut", x, np.full(len(x), _height(whole)), len(labels), hollow=True))
  depth = depth_positions.num_layers(whole)
  axis.layer_axis(axes, depth)
  axes.set_xlabel("layer that is cut")
  axes.set_ylabel("switch after layer")
  lines.draw(axes, chosen, lambda axes: axis.layer_heights(axes, depth))
  return made


def _switch(alignment: Alignment) -> Switch:
  return next(iter(alignment.readings.values()))["all"].switch


def _height(alignment: Alignment) -> float:
  """Layers completed at the switch; NaN: there is none."""
  index = _switch(alignment).index
  return np.nan if index is None else depth_positions.places(alignment)[index]


def _setup(axes: Axes) -> None:
  axes.set_yscale("symlog", linthresh=_SMALL)
  axes.yaxis.set_major_formatter("{x:g}")
  axes.axhline(0, color="#888888", linewidth=0.8)
