"""One page of HTML about a run: its result, curve, shift, sample, time and settings."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from resjax import combinators
from resjax.base import Location, locations
from resjax.base.records import METRICS_FILE, read_metrics, time_ledger
from resjax.study import config_tree
from resjax.study.analysis import Alignment, depth_positions, plots
from resjax.study.analysis.report import TRAJECTORIES, alignment_figures, alignment_table, parts
from resjax.train import run_history, run_tables
from resjax.train.end_of_run import SAMPLE
from resjax.train.evaluate import SPLIT
from resjax.train.runs import history, workdir
from resjax.train.runs.workdir import Record

_MOST_OF_SAMPLE = 1 << 20  # bytes
_SHARED = ("workdir",)  # settings that differ between all runs
_CURVES = (
  ("train/loss", "Training", "Loss of the training steps that were recorded."),
  ("validation/bits_per_byte", "Validation", "Loss of the validation split."),
)
# Of runs with experts, over those of all layers in a step; docs/moe.md.
_ROUTER_CURVES = (
  ("router/max_load", "Load", "The largest load of an expert over the mean load of its layer."),
  ("router/dead", "Dead experts", "The share of experts that no token of the step chose."),
  ("router/overloaded", "Overloaded", "The share of experts with more than twice the mean load."),
  ("router/entropy", "Entropy", "The entropy of a token's scores over that of equal ones."),
)
_RANKS = (
  "Rank of the input token and of the next token among all tokens when the state is decoded by "
  "final norm and output embedding, in the last measurement of the run."
)


def page(folder: Location, base: Mapping[str, Any]) -> str:
  """Returns the page of a run, finished or not.

  Args:
    folder: the folder of the run.
    base: the settings of configs/base.py, with which the run's are compared.

  Raises:
    ValueError: the folder holds no run, or its record or its metrics are damaged.
  """
  record, path = workdir.read(folder), folder / METRICS_FILE
  records = read_metrics(path) if path.exists() else []
  site = "parallel" if record.config.get("model", {}).get("parallel") else "mlp"
  found = alignment_table.alignments(records, str(folder), SPLIT, site)
  lead = parts.answer(str(folder), _reached(record, records))
  if found:
    lead += parts.answer("Input token and next token", depth_positions.answer(found[-1]))
  sections = [
    parts.section("run", "The run", parts.table("The run", ("", ""), _facts(record, records))),
    parts.section("curves", "Curves", parts.figures(_figures(record, records, found))),
    *run_history.section(record.parts),
    *_sample(folder),
    *_time(records),
    _settings(record.config, base),
  ]
  return parts.fill(f"Run {folder.name}", lead, sections)


def _reached(record: Record, records: Sequence[Mapping[str, Any]]) -> str:
  """Returns how far a run came, in a sentence."""
  steps = record.config.get("train", {}).get("steps")
  done = records[-1]["step"] if records else 0
  evaluations = run_tables.evaluations(records)
  if not evaluations:
    return f"step {done} of {steps}; no evaluation so far"
  first, last = (evaluations[at]["validation/bits_per_byte"] for at in (0, -1))
  change = f", {last / first - 1:+.1%} since the first evaluation" if len(evaluations) > 1 else ""
  at = evaluations[-1]["step"]
  return f"validation {last:.4f} bits per byte at step {at} of {steps}{change}"


def _facts(record: Record, records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
  """Yields facts about a run from its record: name and value."""
  residual = record.config.get("model", {}).get("residual", {})
  yield "residual system", str(residual.get("name"))
  for name, value in (
    ("parameters", record.costs.parameters),
    ("parameters active for a token", record.costs.active_parameters),
    ("training FLOPs per token", record.costs.training_flops_per_token),
    ("depth state, bytes per token", record.costs.state_bytes_per_token),
  ):
    if value is not None:
      yield name, f"{value:,.0f}"
  speeds = sorted(r["time/tokens_per_second"] for r in records if r.get("time/tokens_per_second"))
  if speeds:
    yield "tokens per second, median", f"{speeds[len(speeds) // 2]:,.0f}"
  facts = record.environment.facts
  for name in ("devices", "git", "python", "resjax", "jax", "flax"):
    if fact := facts.get(name):
      yield name, fact
  if record.environment.command:
    yield "command", shlex.join(record.environment.command)


def _figures(
  record: Record, records: Sequence[Mapping[str, Any]], found: Sequence[Alignment]
) -> Iterator[parts.Drawn]:
  marks = history.marks(record.parts)
  routed = _ROUTER_CURVES if any("router/entropy" in each for each in records) else ()
  for key, title, caption in (*_CURVES, *routed):
    note = f"{caption} {run_history.NOTE}" if marks else caption
    yield parts.Drawn(key.replace("/", "_"), plots.curve(records, key, marks), title, note)
  if found:
    rank = TRAJECTORIES["rank"]
    drawn = alignment_figures.figure(found[-1], rank, "closed")
    yield parts.Drawn("rank", drawn, rank.title, _RANKS)


def _sample(folder: Location) -> Iterator[str]:
  """Yields the section with the text that the model wrote, if there is one."""
  if (folder / SAMPLE).exists():
    text = locations.read_bytes(folder / SAMPLE, _MOST_OF_SAMPLE).decode("utf-8", "replace")
    yield parts.section("sample", "A sample", f"<pre>{escape(text)}</pre>")


def _time(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
  """Yields the section with the account of time, if there is one."""
  account = time_ledger.shares(time_ledger.recorded(records))
  if account:
    rows = [(name, f"{seconds:,.1f}", f"{share:.1%}") for name, seconds, share in account]
    table = parts.table("Where the time went", ("", "seconds", "share"), rows)
    yield parts.section("time", "Where the time went", table)


def _settings(config: Mapping[str, Any], base: Mapping[str, Any]) -> str:
  """Returns the section with the settings that differ from the base or, as options, from defaults.

  Options of residual systems and of sharding rules that the run does not use are left out.
  """
  own, usual = config_tree.in_use(config), _settings_of({**_options(config), **base})
  rows = [
    (name, _text(value), _text(usual[name]) if name in usual else "none")
    for name, value in own.items()
    if name not in _SHARED and value != usual.get(name)
  ]
  table = parts.table("Settings", ("config.", "this run", "base"), rows)
  return parts.section("settings", "Settings that are not those of the base", table)


def _options(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the defaults of the options of a run's system by dotted name; {} if it is not here."""
  name = str(config.get("model", {}).get("residual", {}).get("name"))
  try:
    found = combinators.options(name)
  except ValueError:
    return {}
  return {f"model.residual.{combinators.section(name)}.{key}": found[key] for key in found}


def _settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
  found = config_tree.flat(config)
  return {key: list(v) if isinstance(v, tuple) else v for key, v in found.items()}


def _text(value: Any) -> str:
  return value if isinstance(value, str) and value else repr(value)
