"""The table, the files and the plot of a sweep's runs."""

import csv
import dataclasses
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from resjax.base import Location, locations, terminal, typed_json
from resjax.combinators import FAMILIES
from resjax.study.analysis import plots
from resjax.study.sweeps.comparison import Comparison
from resjax.study.sweeps.results import DONE, Result, mean_of_seeds

FILE_NAME = "results.json"
# The panels of the plot: the label and the attribute of `Result` that it shows.
_PANELS = {
  plots.FINAL: "bits_per_byte",
  "parameters": "num_parameters",
  "tokens per second": "tokens_per_second",
  "depth state\n(bytes per token)": "state_bytes_per_token",
}
_OF_SEEDS = ("bits_per_byte", "tokens_per_second")  # the others are the same for all seeds


def show(results: Sequence[Result], console: Console) -> None:
  """Prints the table of a sweep, whose first run is the reference."""
  numbers = "params", "loss", "bpb", "Δ", "tok/s", "state", "step"
  table = terminal.Table("run", numbers=numbers)
  table.numbers("status", justify="left")
  for r in _by_family(results, table):
    table.add_row(
      r.name,
      "" if r.num_parameters is None else f"{r.num_parameters / 1e6:.3f}M",
      terminal.number(r.loss, ".3f"),
      terminal.number(r.bits_per_byte, ".4f"),
      terminal.number(r.delta(results[0]), "+.4f"),
      terminal.number(r.tokens_per_second, ".0f"),
      terminal.number(r.state_bytes_per_token, "d"),
      str(r.step),
      r.status,
    )
  console.print(table)
  terminal.say(
    console,
    "loss: nats per token, bpb: bits per byte, of the validation split; "
    f"Δ: bits per byte above {results[0].name}; state: bytes of depth state per token",
  )


def _by_family(results: Sequence[Result], table: terminal.Table) -> Iterator[Result]:
  """Yields results by family; between them the table gets headings if there are several."""
  families = [family for family in FAMILIES if family in {r.family for r in results}]
  for family in families:
    if len(families) > 1:
      table.add_section()
      table.add_row(Text(family, style="bold"))
    yield from (r for r in results if r.family == family)


def show_errors(results: Sequence[Result], console: Console) -> None:
  """Prints why runs failed."""
  for r in results:
    if r.error is not None:
      terminal.say(console, f"{r.name} failed: {r.error}")


@dataclasses.dataclass(frozen=True)
class Stored:
  """What a `results.json` holds: all runs, and what they show if the sweep has seeds."""

  runs: list[Result]
  comparison: Comparison | None = None


def read(folder: Location) -> Stored:
  """Returns the results that a folder holds.

  Raises:
    FileNotFoundError: it holds none.
    ValueError: they are damaged, or of an earlier release.
  """
  try:
    return typed_json.read(folder / FILE_NAME, Stored)
  except ValueError as error:
    raise ValueError(f"{error}; `resjax sweep --collect` writes it anew") from None


def save(
  results: Sequence[Result], folder: Location, comparison: Comparison | None = None
) -> list[Location]:
  """Writes results.json and results.csv into a folder, and returns their paths.

  Args:
    results: the results of the runs, the reference first.
    folder: the folder of the files.
    comparison: what they show; None if the sweep has no seeds.
  """
  locations.make_folder(folder, "config.workdir")
  references = {r.seed: r for r in results if r.arm == results[0].arm}
  rows = [
    dataclasses.asdict(r) | {"delta_bits_per_byte": r.delta(references[r.seed])} for r in results
  ]
  as_json, as_csv = folder / FILE_NAME, folder / "results.csv"
  content: dict[str, Any] = {"reference": results[0].arm, "runs": rows}
  if comparison is not None:
    content["comparison"] = dataclasses.asdict(comparison)
  locations.write_text(as_json, json.dumps(content, indent=2, allow_nan=False) + "\n")
  table = io.StringIO()
  nested = ("overrides", "curve", "devices")
  writer = csv.DictWriter(table, fieldnames=list(rows[0]))
  writer.writeheader()
  writer.writerows(row | {name: json.dumps(row[name]) for name in nested} for row in rows)
  locations.write_text(as_csv, table.getvalue())
  return [as_json, as_csv]


def figure(results: Sequence[Result], curves: tuple[str, str] | None, title: str) -> Figure | None:
  """Draws all finished runs; returns None if no run is finished.

  The figure shows bits per byte over a setting, or the results and costs of each arm as dots: with
  seeds their means and 95 % intervals.

  Args:
    results: the results of the sweep, the reference first.
    curves: the setting of the horizontal axis and the setting that tells curves apart; runs that do
      not override both become horizontal lines. None draws dots.
    title: the title of the figure.
  """
  done = [r for r in results if r.status == DONE]
  if not done:
    return None
  if curves is None:
    return plots.sweep_dots(_panels(done), results[0].arm, title)
  done = [r for r in mean_of_seeds(results) if r.status == DONE]
  on_curves = [r for r in done if all(key in r.overrides for key in curves)]
  free = [r for r in done if r not in on_curves]
  levels = {r.name: r.bits_per_byte for r in free if r.bits_per_byte is not None}
  across = curves[0].rpartition(".")[2]
  return plots.sweep_curves(_lines(on_curves, *curves), levels, across, title)


def _panels(done: Sequence[Result]) -> dict[str, dict[str, list[float]]]:
  """Returns the data of the panels: for each arm a result per seed, or one cost."""
  panels: dict[str, dict[str, list[float]]] = {}
  for label, key in _PANELS.items():
    arms = panels.setdefault(label, {})
    for r in done:
      value, found = getattr(r, key), arms.setdefault(r.arm, [])
      if value is not None and (key in _OF_SEEDS or not found):
        found.append(value)
  return panels


def _lines(results: Sequence[Result], across: str, between: str) -> dict[str, list[Any]]:
  """Returns points (value of `across`, bits per byte) for each value of `between`."""
  lines: dict[str, list[Any]] = {}
  for r in results:
    x = r.overrides[across]
    x = x[0] if isinstance(x, tuple) else x
    label = f"{between.rpartition('.')[2]} = {r.overrides[between]}"
    lines.setdefault(label, []).append((x, r.bits_per_byte))
  return lines
