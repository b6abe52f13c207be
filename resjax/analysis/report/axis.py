"""Depth as an axis of a figure: its ticks, and the line and band of a switch."""

from matplotlib.axes import Axes

from resjax.analysis.alignment import Alignment, Switch
from resjax.analysis.depth_positions import interval, places

_MOST_TICKS = 9
_BAND = {"color": "#777777", "alpha": 0.18, "linewidth": 0}


def layer_axis(axes: Axes, layers: int) -> None:
  """Labels the horizontal axis with layers, each where it has been completed."""
  axes.set_xticks(*_ticks(layers))
  axes.set_xlim(*_limits(layers))
  axes.set_xlabel("after layer (emb.: the embedding)")


def layer_heights(axes: Axes, layers: int) -> None:
  """Labels the vertical axis in the same way."""
  axes.set_yticks(*_ticks(layers))
  axes.set_ylim(*_limits(layers))


def _ticks(layers: int) -> tuple[list[int], list[str]]:
  step = -(-layers // _MOST_TICKS)
  shown = range((layers - 1) % step, layers, step)  # the last one always
  return [0, *(layer + 1 for layer in shown)], ["emb.", *map(str, shown)]


def _limits(layers: int) -> tuple[float, float]:
  return -0.02 * layers, 1.02 * layers


def relative_axis(axes: Axes) -> None:
  """Labels the horizontal axis with shares of the depth, for models of different depth."""
  axes.set_xlim(-0.02, 1.02)
  axes.set_xlabel("relative depth (0: embedding, 1: last layer)")


def draw_switch(axes: Axes, alignment: Alignment, switch: Switch | None) -> None:
  """Draws the switch as a vertical line and its confidence interval as a band, if there is one."""
  if switch is None or switch.index is None:
    return
  x = places(alignment)
  axes.axvspan(*interval(x, switch), **_BAND)
  axes.axvline(x[switch.index], color="#555555", linewidth=1)
