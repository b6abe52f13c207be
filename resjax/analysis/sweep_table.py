"""Sweeps: the runs that a config asks for, and the table and plot of their results."""

import csv
import dataclasses
import difflib
import io
import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from resjax import locations
from resjax.analysis import plots
from resjax.locations import Location

DONE = "done"
# The panels of the plot: the label and the attribute of `Result` that it shows.
_PANELS = {
  plots.FINAL: "bits_per_byte",
  "parameters": "num_parameters",
  "tokens per second": "tokens_per_second",
  "depth state (bytes per token)": "state_bytes_per_token",
}
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclasses.dataclass(frozen=True)
class SweepRun:
  """One run of a sweep.

  Attributes:
    name: the name of the run and of its folder.
    overrides: the values of dotted settings that tell this run from the others.
    config: the whole config; its workdir is the folder `name` in the workdir of the sweep.
  """

  name: str
  overrides: Mapping[str, Any]
  config: ConfigDict


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of one run of a sweep, which need not be finished.

  Attributes:
    name: the name of the run.
    overrides: the values of settings that tell it from the others.
    num_parameters: the number of parameters; None for a run that has not begun.
    state_bytes_per_token: the size of the depth state after the last layer; None likewise.
    loss: the validation loss in nats per token at the last evaluation; None before the first.
    bits_per_byte: the same loss in bits per byte.
    tokens_per_second: the median of the records; None if there is no record of speed.
    step: the step of the last record.
    steps: the number of steps of the whole run.
    status: `done`, `partial`, `not run`, `diverged` (the loss is not finite) or `failed`.
    error: the error of a failed run, in one line.
  """

  name: str
  overrides: Mapping[str, Any]
  num_parameters: int | None
  state_bytes_per_token: int | None
  loss: float | None
  bits_per_byte: float | None
  tokens_per_second: float | None
  step: int
  steps: int
  status: str
  error: str | None

  def delta(self, reference: "Result") -> float | None:
    """Returns the bits per byte above the reference; None unless both did the same steps."""
    if not self.status == reference.status == DONE or self.steps != reference.steps:
      return None
    if self.bits_per_byte is None or reference.bits_per_byte is None:
      return None
    return self.bits_per_byte - reference.bits_per_byte


def expand(config: ConfigDict, sweep: Iterable[tuple[str, Mapping[str, Any]]]) -> list[SweepRun]:
  """Returns the runs of a sweep, each with the whole config.

  Args:
    config: the config that all runs share, which is not changed.
    sweep: names and dotted overrides, such as ("long", {"train.steps": 10}).

  Raises:
    ValueError: There is no run, a name is used twice or cannot name a folder, or an override has
      the wrong type or no setting of that name.
  """
  runs: dict[str, SweepRun] = {}
  if not isinstance(sweep, Iterable):
    raise ValueError(f"sweep(config) returned {sweep!r}; allowed: pairs of a name and overrides")
  for run in sweep:
    if not (isinstance(run, tuple) and [*map(type, run)] == [str, dict]):
      raise ValueError(
        f"sweep(config) gave {run!r}; allowed: pairs of a name and a dict of overrides"
      )
    name, overrides = run
    if name in runs:
      raise ValueError(f"the sweep has two runs named {name!r}; names must differ")
    if not _RUN_NAME.fullmatch(name):
      raise ValueError(f"run {name!r}: a name may hold letters, digits, dots, - and _")
    runs[name] = SweepRun(name, overrides, _override(config, name, overrides))
  if not runs:
    raise ValueError("the sweep has no runs")
  return list(runs.values())


def _override(config: ConfigDict, name: str, overrides: Mapping[str, Any]) -> ConfigDict:
  settings = list(_settings(config.to_dict()))
  for key in overrides:
    if key not in settings:
      near = difflib.get_close_matches(key, settings, 1)
      hint = f"; did you mean {near[0]!r}?" if near else ""
      raise ValueError(f"run {name!r}: {key!r} is not a setting{hint}")
  config = config.copy_and_resolve_references()
  try:
    config.update_from_flattened_dict(overrides)
  except TypeError as error:
    raise ValueError(f"run {name!r}: {error}") from None
  config.workdir = str(locations.path(config.workdir, "config.workdir") / name)
  return config


def _settings(values: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
  for key, value in values.items():
    if isinstance(value, Mapping):
      yield from _settings(value, f"{prefix}{key}.")
    else:
      yield f"{prefix}{key}"


def result(
  run: SweepRun, records: plots.Records, costs: Mapping[str, int | None], error: str | None = None
) -> Result:
  """Returns the result of one run.

  Args:
    run: the run.
    records: the records of its metrics; empty for a run that has not begun.
    costs: `parameters` and `state_bytes_per_token` of the model; empty likewise.
    error: the reason of its failure in one line; None if it did not fail.
  """
  evaluations = [r for r in records if "validation/bits_per_byte" in r and r["step"] > 0]
  last = evaluations[-1] if evaluations else {}
  speeds = [r["time/tokens_per_second"] for r in records if r.get("time/tokens_per_second")]
  step, steps = (records[-1]["step"] if records else 0), run.config.train.steps
  if error is not None:
    status = "failed"
  elif not records:
    status = "not run"
  elif last and last["validation/bits_per_byte"] is None:
    status = "diverged"
  else:
    status = DONE if last.get("step") == step >= steps else "partial"
  return Result(
    name=run.name,
    overrides=run.overrides,
    num_parameters=costs.get("parameters"),
    state_bytes_per_token=costs.get("state_bytes_per_token"),
    loss=last.get("validation/loss"),
    bits_per_byte=last.get("validation/bits_per_byte"),
    tokens_per_second=statistics.median(speeds) if speeds else None,
    step=step,
    steps=steps,
    status=status,
    error=error,
  )


def show(results: Sequence[Result], console: Console) -> None:
  """Prints the table of a sweep, whose first run is the reference."""
  table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
  table.add_column("run", overflow="fold")
  for heading in ("params", "loss", "bpb", "Δ", "tok/s", "state", "step"):
    table.add_column(heading, justify="right", no_wrap=True)
  table.add_column("status", no_wrap=True)
  for r in results:
    table.add_row(
      r.name,
      "" if r.num_parameters is None else f"{r.num_parameters / 1e6:.3f}M",
      _number(r.loss, ".3f"),
      _number(r.bits_per_byte, ".4f"),
      _number(r.delta(results[0]), "+.4f"),
      _number(r.tokens_per_second, ".0f"),
      _number(r.state_bytes_per_token, "d"),
      str(r.step),
      r.status,
    )
  console.print(table)
  console.print(
    "loss: nats per token, bpb: bits per byte, of the validation split; "
    f"Δ: bits per byte above {results[0].name}; state: bytes of depth state per token",
    markup=False,
    soft_wrap=True,
  )
  for r in results:
    if r.error is not None:
      console.print(f"{r.name} failed: {r.error}", markup=False, soft_wrap=True)


def _number(value: float | None, form: str) -> str:
  return "" if value is None else format(value, form)


def save(results: Sequence[Result], folder: Location) -> list[Location]:
  """Writes results.json and results.csv into a folder, and returns their paths."""
  locations.make_folder(folder, "config.workdir")
  rows = [dataclasses.asdict(r) | {"delta_bits_per_byte": r.delta(results[0])} for r in results]
  as_json, as_csv = folder / "results.json", folder / "results.csv"
  content = json.dumps({"reference": results[0].name, "runs": rows}, indent=2)
  locations.write_text(as_json, content + "\n")
  table = io.StringIO()
  writer = csv.DictWriter(table, fieldnames=list(rows[0]))
  writer.writeheader()
  writer.writerows(row | {"overrides": json.dumps(row["overrides"])} for row in rows)
  locations.write_text(as_csv, table.getvalue())
  return [as_json, as_csv]


def plot(
  results: Sequence[Result], curves: tuple[str, str] | None, title: str, folder: Location
) -> Location | None:
  """Draws all finished runs into sweep.png, and returns its path, or None if no run is finished.

  The plot shows bits per byte over a setting, or the results and costs of each run as dots.

  Args:
    results: the results of the sweep, the reference first.
    curves: the setting of the horizontal axis and the setting that tells curves apart; runs that do
      not override both become horizontal lines. None draws dots.
    title: the title of the plot.
    folder: the folder of the file.
  """
  done = [r for r in results if r.status == DONE]
  path = folder / "sweep.png"
  if not done:
    return None
  if curves is None:
    panels = {label: {r.name: getattr(r, key) for r in done} for label, key in _PANELS.items()}
    plots.sweep_dots(panels, results[0].name, title, path)
  else:
    on_curves = [r for r in done if all(key in r.overrides for key in curves)]
    free = [r for r in done if r not in on_curves]
    levels = {r.name: r.bits_per_byte for r in free if r.bits_per_byte is not None}
    across = curves[0].rpartition(".")[2]
    plots.sweep_curves(_lines(on_curves, *curves), levels, across, title, path)
  return path


def _lines(results: Sequence[Result], across: str, between: str) -> dict[str, list[Any]]:
  """Returns points (value of `across`, bits per byte) for each value of `between`."""
  lines: dict[str, list[Any]] = {}
  for r in results:
    x = r.overrides[across]
    x = x[0] if isinstance(x, tuple) else x
    label = f"{between.rpartition('.')[2]} = {r.overrides[between]}"
    lines.setdefault(label, []).append((x, r.bits_per_byte))
  return lines
