"""Fits a scaling law to the reference of a ladder, and says how much compute each arm saves.

  resjax sweep --config=ladder:toy
  resjax ladder --workdir=runs/ladder_toy
  resjax ladder --workdir=runs/ladder_toy --currency=tokens --nospeed --floor=1.7

The command reads the finished runs of a sweep, whose names are RUNG-ARM, and takes means over
seeds. It prints the multiplier S of every arm on every rung, and writes ladder.json and ladder.png
beside the runs. An arm that did not finish every rung is left out, and named. Compute and speed
count in one currency. Speeds are worth something only for runs that had their machine to
themselves; with --nospeed they are left out. docs/scaling.md has the formulas.
"""

import dataclasses
import functools
import re
import statistics
from collections.abc import Mapping, Sequence

import jax
from absl import flags

from resjax.base import Location, locations, terminal
from resjax.base.records import METRICS_FILE, read_metrics
from resjax.cli import command
from resjax.study.analysis import ladder, plots
from resjax.study.statistics import CURRENCIES, LEAST_RUNGS, Ladder
from resjax.study.sweeps import plan as plans
from resjax.study.sweeps import results
from resjax.train import experiment
from resjax.train.runs import workdir

_WORKDIR = flags.DEFINE_string("workdir", None, "The config.workdir of a sweep.")
_REFERENCE = flags.DEFINE_string("reference", "standard", "The arm that the law is fitted to.")
_CURRENCY = flags.DEFINE_enum("currency", CURRENCIES[0], CURRENCIES, "What compute is counted in.")
_FLOOR = flags.DEFINE_float("floor", None, "The loss that no compute reaches; default: fitted.")
_TITLES = flags.DEFINE_bool("titles", False, "The figure has a title.")
_SPEED = flags.DEFINE_bool("speed", True, "Whether S has the ratio of the speeds in it.")


@dataclasses.dataclass(frozen=True)
class Point:
  """A finished run, or the mean of several seeds.

  Attributes:
    loss: the validation loss after the last step in nats per token.
    tokens: how many tokens it was trained on.
    flops_per_token: the training FLOPs for a token; None in older records.
    tokens_per_second: the median of its records; None if it never had a program for itself.
    data: the fingerprint of its data.
  """

  loss: float
  tokens: int
  flops_per_token: float | None
  tokens_per_second: float | None
  data: str


def main() -> None:
  """Reads the ladder of the command line, and writes its comparison."""
  if not _WORKDIR.value:
    raise ValueError("no sweep; give the folder of one, for example --workdir=runs/ladder_toy")
  jax.config.update("jax_platforms", "cpu")  # runs are read, not trained
  folder = locations.path(_WORKDIR.value, "--workdir", writable=True)
  points, unfinished = _read(folder)
  console = terminal.console()
  for line in unfinished:
    console.print(line, markup=False, soft_wrap=True)
  rungs = _rungs(points, folder)
  ladders = {}
  for arm in sorted(points, key=lambda arm: (arm != _REFERENCE.value, arm)):
    found = points[arm]
    missing = [rung for rung in rungs if rung not in found]
    if missing:
      console.print(
        f"{arm} is left out: {', '.join(missing)} is not done", markup=False, soft_wrap=True
      )
    else:
      ladders[arm] = _ladder([found[rung] for rung in rungs])
  comparison = ladder.compare(rungs, ladders, _REFERENCE.value, _CURRENCY.value, _FLOOR.value)
  ladder.show(comparison, console)
  files = folder / "ladder.json", folder / "ladder.png"
  ladder.save(comparison, files[0])
  plots.save(ladder.figure(comparison, str(folder)), files[1], titles=_TITLES.value)
  for file in files:
    console.print(str(file), soft_wrap=True)


def _read(folder: Location) -> tuple[dict[str, dict[str, Point]], list[str]]:
  """Returns the finished runs of a sweep, by arm and rung, and a line for each that is not done.

  Raises:
    ValueError: there is no such folder, or runs have different data.
  """
  if not folder.is_dir():
    raise ValueError(f"--workdir={folder}: there is no such folder; run resjax sweep first")
  runs = {place: _runs(place) for place in sorted(folder.iterdir()) if place.is_dir()}
  plan = plans.read(folder)
  planned = [f"seed_{seed}" for seed in plan.seeds] if plan else []
  wanted = planned or sorted({name for names in runs.values() for name in names if name}) or [""]
  points: dict[str, dict[str, Point]] = {}
  unfinished = []
  for place, found in runs.items():
    rung, _, arm = place.name.partition("-")
    if not arm or not found:
      continue
    # With an unfinished seed, the mean would be over other seeds than for other arms.
    done = {name: point for name in wanted if (point := found.get(name)) is not None}
    if len(done) == len(wanted):
      points.setdefault(arm, {})[rung] = _mean(list(done.values()))
    else:
      missing = ", ".join(name for name in wanted if name and name not in done)
      unfinished.append(f"{place.name} is not done{f': {missing}' if missing else ''}")
  data = {point.data for found in points.values() for point in found.values()}
  if len(data) > 1:
    raise ValueError(f"--workdir={folder}: its runs have different data: {', '.join(sorted(data))}")
  return points, unfinished


def _runs(place: Location) -> dict[str, Point | None]:
  """Returns the runs of an arm on a rung by the folder of their seed, which is "" without seeds.

  One that has not begun, is not done, or diverged, is None.
  """
  seeds = [one for one in sorted(place.iterdir()) if re.fullmatch(r"seed_\d+", one.name)]
  if seeds:
    return {one.name: _point(one) if (one / workdir.RECORD).exists() else None for one in seeds}
  return {"": _point(place)} if (place / workdir.RECORD).exists() else {}


def _point(folder: Location) -> Point | None:
  """Returns the result of a run, or None if it is not done or diverged."""
  run, record = experiment.load(str(folder)), workdir.read(folder)
  records = read_metrics(folder / METRICS_FILE) if (folder / METRICS_FILE).exists() else []
  losses = [
    r.get("validation/loss")
    for r in records
    if r["step"] == run.train.steps and "validation/loss" in r
  ]
  if not losses or losses[-1] is None:
    return None
  return Point(
    losses[-1],
    run.train.steps * run.train.batch_size * run.data.seq_len,
    record.costs.training_flops_per_token,
    results.speed(records),
    record.data_fingerprint,
  )


def _mean(runs: Sequence[Point]) -> Point:
  """Returns the mean of the seeds of one arm on one rung."""
  speeds = [run.tokens_per_second for run in runs if run.tokens_per_second is not None]
  return dataclasses.replace(
    runs[0],
    loss=statistics.fmean(run.loss for run in runs),
    tokens_per_second=statistics.median(speeds) if speeds else None,
  )


def _rungs(points: Mapping[str, Mapping[str, Point]], folder: Location) -> list[str]:
  """Returns the rungs of the reference, from the least compute.

  Raises:
    ValueError: the reference is not there, or has too few finished rungs.
  """
  found = points.get(_REFERENCE.value, {})
  if len(found) < LEAST_RUNGS:
    arms = ", ".join(sorted(points)) or "none"
    raise ValueError(
      f"--workdir={folder}: --reference={_REFERENCE.value} has {len(found)} finished rungs, "
      f"folders RUNG-{_REFERENCE.value}, and needs {LEAST_RUNGS}; arms with finished runs: {arms}"
    )
  return sorted(found, key=lambda rung: found[rung].tokens * (found[rung].flops_per_token or 1))


def _ladder(points: Sequence[Point]) -> Ladder:
  """Returns the rungs of an arm; what one of them does not know is left out of all."""
  flops = [point.flops_per_token for point in points if point.flops_per_token is not None]
  speeds = [point.tokens_per_second for point in points if point.tokens_per_second is not None]
  return Ladder(
    losses=[point.loss for point in points],
    tokens=[point.tokens for point in points],
    flops_per_token=flops if len(flops) == len(points) else None,
    tokens_per_second=speeds if _SPEED.value and len(speeds) == len(points) else None,
  )


run = functools.partial(command.run, main)
