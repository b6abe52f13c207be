"""The depth-attention map: the weight with which each site reads each source."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from resjax.analysis import depth_positions
from resjax.analysis.alignment import Alignment
from resjax.analysis.report import panels

_MOST_NUMBERS = 16  # With more sources the cells have no room for their numbers.
_MOST_LABELS = 30


def depth_map(alignment: Alignment) -> Figure | None:
  """Draws the mean weight of each source in each read; None if the model has no such weights."""
  weights = alignment.depth_weights
  if weights is None:
    return None
  readers = ["output" if r.site == "output" else f"{r.layer} {r.site}" for r in weights.readers]
  subtitle = depth_positions.subtitle(alignment, next(iter(alignment.readings.values()))["all"])
  made, axes = panels.panel("Depth attention", subtitle, size=(7.6, 6.6))
  values = np.where(weights.weights != 0, weights.weights, np.nan)
  most = max(1.0, np.abs(weights.weights).max())
  scale: dict[str, Any] = {"cmap": "Blues", "vmin": 0, "vmax": most}
  if (weights.weights < 0).any():  # Such weights do not come from a softmax.
    scale = {"cmap": "PuOr", "vmin": -most, "vmax": most}
  axes.set_facecolor("#E4E4E4")  # Grey shows sources that do not exist yet.
  image = axes.imshow(values, **scale, aspect="auto")
  _ticks(axes.set_xticks, weights.sources, rotation=90)
  _ticks(axes.set_yticks, readers)
  axes.set_xlabel("source")
  axes.set_ylabel("reader (layer and site)")
  made.colorbar(image, ax=axes, label="weight, mean over tokens; grey: none", shrink=0.7)
  if len(weights.sources) <= _MOST_NUMBERS:
    for (row, column), value in np.ndenumerate(values):
      if np.isfinite(value):
        colour = "#FFFFFF" if abs(value) > 0.55 * most else "#000000"
        axes.text(column, row, f"{value:.2f}".lstrip("0"), ha="center", va="center", fontsize=7.5,
                  color=colour)  # fmt: skip
  return made


def _ticks(set_ticks: Callable[..., object], names: Sequence[str], **style: Any) -> None:
  step = -(-len(names) // _MOST_LABELS)
  set_ticks(range(0, len(names), step), names[::step], fontsize=panels.LABEL, **style)
