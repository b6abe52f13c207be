"""Figures of an alignment that compare groups of tokens, as controls of the switch."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from resjax.analysis import depth_positions
from resjax.analysis.alignment import DECILES, Alignment, Group
from resjax.analysis.report import panels
from resjax.analysis.report.panels import Line
from resjax.analysis.report.trajectories import TRAJECTORIES

_LABELS = {
  "all": "all tokens",
  "distinct": "next ≠ input",
  **{name: f"decile {number} of next" for number, name in enumerate(DECILES)},
  DECILES[0]: "most frequent next",
  DECILES[-1]: "rarest next",
  "shuffled": "shuffled next",
}
_RANKS = ("all", "distinct", DECILES[0], DECILES[-1], "shuffled")


def switches(alignment: Alignment, reading: str) -> Figure:
  """Draws the switch of each group of tokens as a dot with its confidence interval."""
  groups = alignment.readings[reading]
  made, axes = panels.panel(
    "The switch by group of tokens", depth_positions.subtitle(alignment, groups["all"])
  )
  x = depth_positions.places(alignment)
  for row, group in enumerate(groups.values()):
    _draw_switch(axes, x, row, group)
  names = [f"{_LABELS[name]}  (n = {group.num_tokens:,})" for name, group in groups.items()]
  axes.set_yticks(range(len(groups)), names, fontsize=panels.LABEL)
  axes.set_ylim(len(groups) - 0.5, -0.5)
  axes.grid(axis="x", alpha=0.25)
  panels.layer_axis(axes, depth_positions.num_layers(alignment))
  return made


def ranks(alignment: Alignment, reading: str) -> Figure:
  """Draws the rank of the next token for some groups of tokens over depth."""
  groups, trajectory = alignment.readings[reading], TRAJECTORIES["rank"]
  made, axes = panels.panel(
    "Rank of the next token by group", depth_positions.subtitle(alignment, groups["all"])
  )
  x, chosen = depth_positions.places(alignment), []
  for style, name in enumerate(_RANKS):
    y = np.exp(groups[name].metrics["next_log_rank"])
    chosen.append(Line(_LABELS[name], x, y, style))
  panels.layer_axis(axes, depth_positions.num_layers(alignment))
  axes.set_ylabel(trajectory.unit)
  panels.draw_lines(axes, chosen, trajectory.setup)
  return made


def _draw_switch(axes: Axes, x: np.ndarray, row: int, group: Group) -> None:
  switch = group.switch
  if switch is None or switch.index is None:
    words = "no tokens" if switch is None else "no switch"
    axes.text(x[0], row, words, va="center", fontsize=panels.LABEL, style="italic")
    return
  ends = depth_positions.interval(x, switch)
  axes.plot(
    ends, [row, row], color=panels.STYLES[0]["color"], linewidth=2, marker="|", markersize=9
  )
  axes.plot(x[switch.index], row, color=panels.STYLES[0]["color"], marker="o", markersize=7)
