"""Depth as an axis: where positions lie, what they are called, where the switch is drawn."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from resjax.analysis.alignment import Alignment, Group, Position, Switch

_MOST_TICKS = 9
_BAND = {"color": "#777777", "alpha": 0.18, "linewidth": 0}


def places(alignment: Alignment) -> np.ndarray:
  """Returns [P] layers completed at each depth position: 0 at the embedding, L at the end."""
  sites = _sites(alignment.positions)
  found = [
    0.0 if p.layer < 0 else p.layer + (sites.index(p.site) + 1) / len(sites)
    for p in alignment.positions
  ]
  return np.array(found)


def num_layers(alignment: Alignment) -> int:
  """Returns L."""
  return alignment.positions[-1].layer + 1


def names(positions: Sequence[Position]) -> list[str]:
  """Returns what depth positions are called: `embedding`, `layer 3`, or `layer 3 mlp`."""
  by_site = len(_sites(positions)) > 1
  return [
    "embedding" if p.layer < 0 else f"layer {p.layer}{f' {p.site}' * by_site}" for p in positions
  ]


def switch_text(alignment: Alignment, switch: Switch | None) -> str:
  """Returns the switch and its confidence interval in words."""
  if switch is None:
    return "no tokens"
  if switch.index is None:
    return "no switch"
  called = names(alignment.positions)
  if alignment.num_rows == 1:
    return f"after {called[switch.index]} (one row: no interval)"
  lower, at, upper = (
    "nowhere" if index is None else called[index]
    for index in (switch.lower, switch.index, switch.upper)
  )
  between = " to ".join(end.removeprefix("layer ") for end in (lower, upper))
  return f"after {at} ({switch.level:.0%}: {between})"


def subtitle(alignment: Alignment, group: Group) -> str:
  """Returns model, corpus and number of tokens in a line."""
  return f"{alignment.model}  |  {alignment.corpus}  |  n = {group.num_tokens:,} tokens"


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


def interval(x: np.ndarray, switch: Switch) -> tuple[float, float]:
  """Returns the confidence interval of a switch on an axis [P]; nowhere is its end."""
  lower, upper = (x[-1 if end is None else end] for end in (switch.lower, switch.upper))
  return lower, upper


def _sites(positions: Sequence[Position]) -> list[str]:
  return [position.site for position in positions if position.layer == 0]
