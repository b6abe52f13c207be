"""What the records of a sweep's runs say: progress, metrics and costs of each."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from resjax import combinators
from resjax.study.analysis import plots
from resjax.study.sweeps.runs import SweepRun

DONE, PARTIAL, NOT_RUN = "done", "partial", "not run"
DIVERGED, FAILED = "diverged", "failed"
PRIMARY = "validation/bits_per_byte"


@dataclasses.dataclass(frozen=True)
class Environment:
  """Where a run ran last, as its record says.

  Attributes:
    git: the commit of the code; None if it is not known.
    devices: the kind of each device.
  """

  git: str | None = None
  devices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of one run of a sweep, which need not be finished.

  Attributes:
    name: the name of the run.
    arm: the name of its arm.
    seed: its seed; None in a sweep without seeds.
    overrides: the values of settings that tell it from the others.
    num_parameters: the number of parameters; None for a run that has not begun.
    state_bytes_per_token: the size of the depth state after the last layer; None likewise.
    flops_per_token: the floating-point operations of training per token; None likewise.
    step_bytes: the memory of one device that the compiled training step takes; None where unknown,
      as for runs that trained together.
    loss: the validation loss in nats per token at the last evaluation; None before the first.
    bits_per_byte: the same loss in bits per byte.
    value: the metric that the sweep compares at the last evaluation; None before the first.
    curve: the same metric by tokens seen, at every evaluation: (tokens, value).
    tokens_per_second: the median of the records; None if there is none of the run alone.
    step: the step of the last record.
    steps: the number of steps of the whole run.
    begun: when its first record was written, in seconds since 1970; None if it has none.
    code: the commit of the code of its last start, if it is known.
    devices: the kind of each device that it ran on.
    status: `done`, `partial`, `not run`, `diverged` (the loss is not finite, or the guard ended the
      run) or `failed`.
    error: the error of a failed run, in one line.
  """

  name: str
  arm: str
  seed: int | None
  overrides: Mapping[str, Any]
  num_parameters: int | None
  state_bytes_per_token: int | None
  flops_per_token: float | None
  step_bytes: int | None
  loss: float | None
  bits_per_byte: float | None
  value: float | None
  curve: tuple[tuple[int, float], ...]
  tokens_per_second: float | None
  step: int
  steps: int
  begun: float | None
  code: str | None
  devices: tuple[str, ...]
  status: str
  error: str | None

  @property
  def family(self) -> str:
    """The family of the residual system that its overrides name; `others` if they name none."""
    name = self.overrides.get("model.residual.name")
    return combinators.get(name).family if name in combinators.names() else "others"

  def delta(self, reference: "Result") -> float | None:
    """Returns the bits per byte above the reference; None unless both did the same steps."""
    if not self.status == reference.status == DONE or self.steps != reference.steps:
      return None
    if self.bits_per_byte is None or reference.bits_per_byte is None:
      return None
    return self.bits_per_byte - reference.bits_per_byte


def result(
  run: SweepRun,
  records: plots.Records,
  costs: Mapping[str, float | None],
  error: str | None = None,
  *,
  environment: Environment | None = None,
  metric: str = PRIMARY,
) -> Result:
  """Returns the result of one run.

  Args:
    run: the run.
    records: the records of its metrics; empty for a run that has not begun.
    costs: what its model costs, by the names of `resjax.train.runs.workdir.Costs`; empty likewise.
    error: the reason of its failure in one line; None if it did not fail.
    environment: where it ran; None: not known.
    metric: the name of the metric that the sweep compares.

  Raises:
    ValueError: the evaluations have no such metric.
  """
  evaluations = [r for r in records if PRIMARY in r and r["step"] > 0]
  last = evaluations[-1] if evaluations else {}
  if last and metric not in last:
    names = ", ".join(sorted(name for name in last if "/" in name))
    raise ValueError(f"run {run.name!r} has no metric {metric!r}; its evaluations have {names}")
  sizes = measured_alone(records, "memory/step_bytes")
  times = [r["goodput/unix_time"] for r in records if r.get("goodput/unix_time")]
  per_step = run.config.train.batch_size * run.config.data.seq_len
  where = environment or Environment()
  return Result(
    name=run.name,
    arm=run.arm,
    seed=run.seed,
    overrides=run.overrides,
    num_parameters=_whole(costs.get("parameters")),
    state_bytes_per_token=_whole(costs.get("state_bytes_per_token")),
    flops_per_token=costs.get("training_flops_per_token"),
    step_bytes=_whole(sizes[-1]) if sizes else None,
    loss=last.get("validation/loss"),
    bits_per_byte=last.get("validation/bits_per_byte"),
    value=last.get(metric),
    curve=tuple((r["step"] * per_step, r[metric]) for r in evaluations if r[metric] is not None),
    tokens_per_second=speed(records),
    step=records[-1]["step"] if records else 0,
    steps=run.config.train.steps,
    begun=min(times) if times else None,
    code=where.git,
    devices=where.devices,
    status=_status(run, records, last, metric, error),
    error=error,
  )


def _status(
  run: SweepRun, records: plots.Records, last: Mapping[str, Any], metric: str, error: str | None
) -> str:
  losses = [r["train/loss"] for r in records if "train/loss" in r]
  if records and "train/ended_by_guard" in records[-1]:
    return DIVERGED
  if error is not None:
    return FAILED
  if not records:
    return NOT_RUN
  if (last and last[metric] is None) or (losses and losses[-1] is None):
    return DIVERGED
  ended = last.get("step") == records[-1]["step"] >= run.config.train.steps
  return DONE if ended else PARTIAL


def speed(records: plots.Records) -> float | None:
  """Returns the median of a run's tokens per second; None if it always ran with others."""
  found = measured_alone(records, "time/tokens_per_second")
  return statistics.median(found) if found else None


def measured_alone(records: plots.Records, name: str) -> list[float]:
  """Returns a measurement of a program from the records that were no share of several runs."""
  return [r[name] for r in records if r.get(name) and r.get("time/runs", 1) == 1]


def _whole(value: float | None) -> int | None:
  return None if value is None else int(value)


def spread(results: Sequence[Result], arm: str) -> float | None:
  """Returns the standard deviation of an arm over its finished seeds; None with fewer than two."""
  values = [r.value for r in results if r.arm == arm and r.status == DONE and r.value is not None]
  return statistics.stdev(values) if len(values) > 1 else None


def mean_of_seeds(results: Sequence[Result]) -> list[Result]:
  """Returns one result for each arm: the means of its finished runs.

  Sweeps without seeds, and arms of which no run is finished, keep the results that they have; of
  the latter the first one stands for the arm.
  """
  arms: dict[str, list[Result]] = {}
  for one in results:
    arms.setdefault(one.arm, []).append(one)
  return [_mean(arm, runs) for arm, runs in arms.items()]


def _mean(arm: str, runs: Sequence[Result]) -> Result:
  done = [run for run in runs if run.status == DONE]
  if not done:
    return dataclasses.replace(runs[0], name=arm)

  def mean(name: str) -> float | None:
    known = [getattr(run, name) for run in done if getattr(run, name) is not None]
    return statistics.fmean(known) if known else None

  return dataclasses.replace(
    done[0],
    name=arm,
    loss=mean("loss"),
    bits_per_byte=mean("bits_per_byte"),
    value=mean("value"),
    tokens_per_second=mean("tokens_per_second"),
  )
