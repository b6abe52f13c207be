"""The comparison of a sweep as figures."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from resjax.study.analysis import plots
from resjax.study.statistics import mean_interval
from resjax.study.sweeps.comparison import Comparison
from resjax.study.sweeps.results import Result


def differences(comparison: Comparison, title: str) -> Figure | None:
  """Draws paired differences with their 95 % intervals, below the names of what is compared.

  Single seeds are dots, the margin is shaded, and contrasts that were not planned are hollow. The
  figure is as narrow as a telephone needs it.

  Args:
    comparison: what the sweep shows.
    title: the title of the figure.

  Returns:
    The figure; None if there is no difference.
  """
  rows = [row for row in (*comparison.planned, *comparison.afterwards) if row.difference]
  if not rows:
    return None
  figure = Figure(figsize=(5.5, 1.9 + 0.55 * len(rows)), layout="constrained")
  axes = figure.subplots()
  planned = len([row for row in comparison.planned if row.difference])
  for y, row in enumerate(rows):
    assert row.difference is not None
    name = plots.plain(f"{row.contrast.arm} - {row.contrast.reference}")
    back = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1}
    axes.text(0.01, y - 0.17, name, transform=axes.get_yaxis_transform(), va="bottom", bbox=back)
    colour = plots.COLOURS[0] if y < planned else plots.COLOURS[1]
    if row.margin is not None:
      label = "margin of equality" if y == 0 else None
      axes.fill_betweenx(
        (y - 0.5, y + 0.5), -row.margin, row.margin, color="0.88", linewidth=0, label=label
      )
    for x in row.difference.paired:
      axes.plot(x, y + 0.25, marker=".", linestyle="", color="0.45", markersize=6)
    if row.difference.interval:
      axes.plot(row.difference.interval, (y, y), color=colour, linewidth=2)
    filled = colour if y < planned else "white"
    axes.plot(row.difference.mean, y, marker="o", color=colour, markerfacecolor=filled)
  for name, marker, colour, filled in (
    ("planned: mean and 95 % interval", "o", plots.COLOURS[0], plots.COLOURS[0]),
    ("found afterwards", "o", plots.COLOURS[1], "white"),
    ("one seed", ".", "0.45", "0.45"),
  ):
    if name != "found afterwards" or planned < len(rows):
      line = "-" if marker == "o" else ""
      axes.plot(
        [], [], marker=marker, linestyle=line, color=colour, markerfacecolor=filled, label=name
      )
  axes.axvline(0, color="black", linewidth=0.8)
  axes.set_yticks([])
  axes.set_ylim(len(rows) - 0.5, -0.7)
  axes.set_xlabel(f"difference in {comparison.metric} ({comparison.better} is better)")
  axes.grid(axis="x", alpha=0.3)
  figure.legend(loc="outside lower center", ncols=1, frameon=False)
  plots.set_title(figure, title)
  return figure


def curves(results: Sequence[Result], metric: str, title: str) -> Figure | None:
  """Draws the metric of every arm over tokens, with bands of 95 % intervals.

  Each interval is for the arm's own mean. Shifts by a seed that all arms share widen it, so that
  differences may be certain where intervals overlap.

  Args:
    results: the results of the runs.
    metric: the name of the metric.
    title: the title of the figure.

  Returns:
    The figure; None if there is no evaluation.
  """
  arms: dict[str, dict[int, list[float]]] = {}
  for result in results:
    points = arms.setdefault(result.arm, {})
    for tokens, value in result.curve:
      points.setdefault(tokens, []).append(value)
  arms = {arm: points for arm, points in arms.items() if points}
  if not arms:
    return None
  figure = Figure(figsize=(6, 4.5 + 0.11 * len(arms)), layout="constrained")
  axes = figure.subplots()
  for i, (arm, points) in enumerate(arms.items()):
    seen = sorted(points)
    colour = plots.COLOURS[i % len(plots.COLOURS)]
    means = [float(np.mean(points[t])) for t in seen]
    bounds = [mean_interval(points[t]) or (m, m) for t, m in zip(seen, means, strict=True)]
    axes.plot(
      seen,
      means,
      color=colour,
      marker=plots.MARKERS[i % len(plots.MARKERS)],
      linestyle=plots.DASHES[i % len(plots.DASHES)],
      label=plots.plain(arm),
    )
    axes.fill_between(seen, *np.array(bounds).T, color=colour, alpha=0.15, linewidth=0)
  axes.set_xlabel("tokens")
  axes.xaxis.set_major_formatter(EngFormatter(sep=""))
  axes.set_ylabel(f"{metric}\nmean and 95 % interval over seeds")
  axes.grid(alpha=0.3)
  figure.legend(loc="outside lower center", ncols=2, frameon=False)
  plots.set_title(figure, title)
  return figure
