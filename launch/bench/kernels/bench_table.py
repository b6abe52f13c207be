"""Reports measurements as lines of text and as a plot."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Record = dict[str, Any]

OK, SKIPPED = "#0072B2", "#D55E00"
HEADER = f"{'arm':16}{'direction':10}{'ms':>10}{'quartiles':>20}{'passes':>9}{'GB/s':>8}"
HEADER += f"{'of copy':>9}{'peak GB':>9}{'error':>9}  code"


def groups(records: Sequence[Record]) -> dict[str, list[Record]]:
  """Returns the records by suite and shape."""
  found: dict[str, list[Record]] = {}
  for record in records:
    found.setdefault(f"{record['suite']} {record['shape']}", []).append(record)
  return found


def table(records: Sequence[Record]) -> str:
  """Returns one line per record of one suite and shape."""
  return "\n".join([HEADER, *map(_line, records)])


def _line(record: Record) -> str:
  start = f"{record['arm']:16}{record['direction']:10}"
  if "median_ms" not in record:
    return f"{start}{record['status']}"
  low, high = record["quartiles_ms"]
  error = record.get("relative_l2_error")
  cells = [
    f"{record['median_ms']:10.3f}",
    f"{low:.3f} .. {high:.3f}".rjust(20),
    f"{record['passes']:9.4g}",
    f"{record['gb_per_s']:8.1f}",
    f"{record['share_of_copy']:9.1%}" if "share_of_copy" in record else " " * 9,
    f"{record['peak_bytes'] / 1e9:9.3f}",
    " " * 9 if error is None else f"{error:9.1e}",
  ]
  return start + "".join(cells) + f"  {record['implementation']}"


def plot(records: Sequence[Record], title: str, path: Path) -> None:
  """Draws the share of copy bandwidth of every arm, in one row of panels per suite and shape.

  Args:
    records: what `suites.run` has returned.
    title: the device, and what else the reader must know.
    path: the PNG file to write.
  """
  rows = groups(records)
  lines = [len({r["arm"] for r in group}) for group in rows.values()]
  figure = Figure(figsize=(10, 1.2 + 0.9 * len(rows) + 0.27 * sum(lines)), layout="constrained")
  FigureCanvasAgg(figure)
  grid = figure.subplots(len(rows), 2, squeeze=False, height_ratios=[n + 2 for n in lines])
  for axes, (name, group) in zip(grid, rows.items(), strict=True):
    directions = list(dict.fromkeys(record["direction"] for record in group))
    for panel, direction in itertools.zip_longest(axes, directions):
      if direction is None:  # it has not been measured yet
        panel.set_axis_off()
        continue
      _bars(panel, [r for r in group if r["direction"] == direction])
      panel.set_title(f"{name}: {direction}", fontsize=9)
  for panel in grid[-1]:
    panel.set_xlabel("least bytes over time, as a share of a copy's (%)")
  figure.suptitle(title)
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=120)


def _bars(panel: Axes, records: Sequence[Record]) -> None:
  # A day on a GPU measures a copy beside each arm: the last one is drawn.
  records = list({record["arm"]: record for record in records}.values())
  names = [record["arm"] for record in records]
  shares = [100 * record.get("share_of_copy", 0.0) for record in records]
  panel.barh(names, shares, color=OK, height=0.7)
  for index, (record, share) in enumerate(zip(records, shares, strict=True)):
    measured = "median_ms" in record
    text = f"{record['median_ms']:.3g} ms" if measured else record["status"].split(":")[0]
    colour = "black" if measured else SKIPPED
    panel.text(share + 1, index, text, va="center", fontsize=7, color=colour)
  panel.axvline(100, color="black", linestyle="--", linewidth=0.8)
  panel.set_xlim(0, max(130.0, *[1.25 * share for share in shares]))
  panel.invert_yaxis()
  panel.tick_params(labelsize=8)
  panel.grid(axis="x", alpha=0.3)
