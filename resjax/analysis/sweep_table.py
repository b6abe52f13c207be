"""Sweeps: the runs that a config asks for, and the table and plot of what came out of them."""

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
# Label of a panel of the plot to the attribute of a result.
_PANELS = {
  plots.FINAL: "bits_per_byte",
  "parameters": "num_parameters",
  "tokens per second": "tokens_per_second",
  "depth state (bytes per token)": "state_bytes_per_token",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclasses.dataclass(frozen=True)
class SweepRun:
  """One run of a sweep.

  Attributes:
    name: of the run and of its folder.
    overrides: dotted setting to value, what tells this run from the others.
    config: the whole config; its workdir is the folder `name` in the sweep's workdir.
  """

  name: str
  overrides: Mapping[str, Any]
  config: ConfigDict


@dataclasses.dataclass(frozen=True)
class Result:
  """How far a run came.

  Attributes:
    name: of the run.
    overrides: what tells it from the others.
    num_parameters: of the model; None for a run that has not begun.
    state_bytes_per_token: of the depth state after the last layer; likewise.
    loss: at the last evaluation, nats per token; None where no step was evaluated yet.
    bits_per_byte: likewise.
    tokens_per_second: median over the records; None without any.
    step: of the last record.
    steps: that the run shall take.
    status: `done`, `partial`, `not run`, `diverged` (no finite loss) or `failed`.
    error: of a failed run, one line.
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
    """Bits per byte above the reference; None where not both are done with as many steps."""
    if not self.status == reference.status == DONE or self.steps != reference.steps:
      return None
    return self.bits_per_byte - reference.bits_per_byte


def expand(config: ConfigDict, sweep: Iterable[tuple[str, Mapping[str, Any]]]) -> list[SweepRun]:
  """Returns the runs of a sweep, each with the whole config.

  Args:
    config: what all runs share; not changed.
    sweep: names and dotted overrides, such as ("long", {"train.steps": 10}).

  Raises:
    ValueError: no run, two of one name, a name that is no folder's, or an override of a setting
      that does not exist or has another type.
  """
  runs = {}
  for name, overrides in sweep:
    if name in runs:
      raise ValueError(f"the sweep has two runs named {name!r}; names must differ")
    if not _NAME.fullmatch(name):
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
      yield prefix + key


def result(
  run: SweepRun, records: plots.Records, costs: Mapping[str, int], error: str | None = None
) -> Result:
  """Returns how far a run came.

  Args:
    run: of the sweep.
    records: of `read_metrics`; empty for a run that has not started.
    costs: of its record: `parameters`, `state_bytes_per_token`; empty if it has not begun.
    error: why it failed, one line; None if it did not.
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
    soft_wrap=True,
  )
  for r in results:
    if r.error is not None:
      console.print(f"{r.name} failed: {r.error}", markup=False, soft_wrap=True)


def _number(value: float | None, form: str) -> str:
  return "" if value is None else format(value, form)


def save(results: Sequence[Result], folder: Location) -> list[Location]:
  """Writes results.json and results.csv into a folder, made when missing; returns their paths."""
  folder.mkdir(parents=True, exist_ok=True)
  rows = [dataclasses.asdict(r) | {"delta_bits_per_byte": r.delta(results[0])} for r in results]
  as_json, as_csv = folder / "results.json", folder / "results.csv"
  as_json.write_text(json.dumps({"reference": results[0].name, "runs": rows}, indent=2) + "\n")
  table = io.StringIO()
  writer = csv.DictWriter(table, fieldnames=list(rows[0]))
  writer.writeheader()
  writer.writerows(row | {"overrides": json.dumps(row["overrides"])} for row in rows)
  as_csv.write_bytes(table.getvalue().encode())
  return [as_json, as_csv]


def plot(
  results: Sequence[Result], curves: tuple[str, str] | None, title: str, folder: Location
) -> Location | None:
  """Draws all finished runs into sweep.png; None if there are none.

  Bits per byte over a setting, or what each run reached and cost: bits per byte, parameters,
  speed, depth state.

  Args:
    results: of the sweep, the reference first.
    curves: the settings on the horizontal axis and of the lines; runs that do not override both
      are horizontal lines. None: one dot per run and number.
    title: of the plot.
    folder: where the file goes.
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
    levels = {r.name: r.bits_per_byte for r in done if r not in on_curves}
    across = curves[0].rpartition(".")[2]
    plots.sweep_curves(_lines(on_curves, *curves), levels, across, title, path)
  return path


def _lines(results: Sequence[Result], across: str, between: str) -> dict[str, list]:
  """Points (value of `across`, bits per byte) by the value of `between`."""
  lines = {}
  for r in results:
    x = r.overrides[across]
    x = x[0] if isinstance(x, tuple) else x
    label = f"{between.rpartition('.')[2]} = {r.overrides[between]}"
    lines.setdefault(label, []).append((x, r.bits_per_byte))
  return lines
