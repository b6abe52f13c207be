"""The two public comparisons of residual systems, from docs/systems/public.json, which holds them.

  python -m docs.systems.public

draws docs/systems/depth.png, loss against depth; the tables of docs/systems.md are written by
`python -m docs.recompute`. Figures of hyper-connection-factory are as its own page prints them.
"""

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.findings import depth
from resjax.study.analysis import plots

FOLDER = pathlib.Path(__file__).parent
DRAWN = ("depthbench",)  # the studies that have losses by depth, a panel each


def studies() -> Mapping[str, Any]:
  """Returns all studies by name: title, shapes, and a row for each design."""
  return json.loads((FOLDER / "public.json").read_text())


def numbers() -> dict[str, str]:
  """Returns the table of every study by its name."""
  return {name: "\n" + "\n".join(_table(study)) + "\n" for name, study in studies().items()}


def _table(study: Mapping[str, Any]) -> Iterator[str]:
  has_rates = "rate" in study["rows"][0]
  heads = ["design", "here", *study["shapes"], *["best rate"] * has_rates]
  yield f"| {' | '.join(heads)} |"
  yield "|---" * len(heads) + "|"
  for row in study["rows"]:
    values = [*row["values"], *[None] * (len(study["shapes"]) - len(row["values"]))]
    cells = [row["design"], _here(row), *map(_cell, values), *[row.get("rate")] * has_rates]
    yield f"| {' | '.join(cells)} |"


def _here(row: Mapping[str, str]) -> str:
  names = (row["system"], row.get("options"))
  return ", ".join(f"`{name}`" for name in names if name) or "–"


def _cell(value: float | str | None) -> str:
  return "" if value is None else value if isinstance(value, str) else f"{value:.3f}"


def figure() -> Figure:
  """Draws the loss of every design against the number of layers, a panel for each study.

  The last one is for the sweeps of configs/ablations/depthbench_1m.py, where they are kept.
  """
  ours = depth.losses()
  count = len(DRAWN) + bool(ours)
  drawn = Figure(figsize=(1.6 + 5.4 * count, 4.6), layout="constrained")
  styles: dict[str, Mapping[str, str]] = {}
  for axes, name in zip(drawn.subplots(1, count, squeeze=False).flat, DRAWN, strict=False):
    styles |= _panel(axes, studies()[name])
  if ours:
    depth.panel(drawn.axes[-1], ours, styles)
    _label(drawn.axes[-1], "here, 1M parameters, five seeds")
  return drawn


def _panel(axes: Axes, study: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
  """Draws a study, and returns how the line of each arm of depthbench.py looks."""
  styles = {}
  layers = [int(shape.split()[0]) for shape in study["shapes"]]
  rows = sorted(study["rows"], key=lambda row: -row["values"][4])  # as lines lie at 32 layers
  for i, row in enumerate(rows):
    style = {"color": plots.COLOURS[i % 7], "marker": plots.MARKERS[i % 8]}
    style["linestyle"] = "-" if i < 7 else "--"
    axes.plot(layers[: len(row["values"])], row["values"], label=row["design"], **style)
    styles["sandwich" if row.get("options") == "post_norm" else row["system"]] = style
  axes.set_xscale("log")
  axes.set_xticks(layers, map(str, layers))
  axes.set_ylabel("validation loss (nats per token)")
  _label(axes, study["title"])
  return styles


def _label(axes: Axes, title: str) -> None:
  axes.minorticks_off()
  axes.set_xlabel("layers, at about the same number of parameters")
  axes.set_title(title, fontsize="medium")
  axes.grid(alpha=0.3)
  axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize="small")


if __name__ == "__main__":
  figure().savefig(FOLDER / "depth.png", dpi=150)
