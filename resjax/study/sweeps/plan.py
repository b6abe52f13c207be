"""The plan of a sweep: its questions, written down before the first run."""

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from resjax import combinators
from resjax.base import Location, locations, ranges, typed_json
from resjax.study import config_tree
from resjax.study.statistics import Contrast
from resjax.study.sweeps.runs import SweepRun

FILE_NAME = "plan.json"

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Seed = Annotated[int, msgspec.Meta(ge=0)]


@dataclasses.dataclass(frozen=True)
class Tuning:
  """How every arm gets its own learning rate, see `resjax.study.sweeps.tuning`.

  Attributes:
    settings: the factors of each setting's value that are tried, upwards and with 1 among them, one
      setting after the other.
    steps: the steps of a run that tries one of them.
    seed: the seed of these runs, which no other run has.
    overrides: other settings of these runs, such as fewer rows for evaluation.
    most_moves: how often a grid whose best factor is the first or the last one may be extended.
  """

  settings: dict[str, tuple[_Positive, ...]]
  steps: _Count
  seed: _Seed
  overrides: dict[str, Any] = dataclasses.field(default_factory=dict)
  most_moves: Annotated[int, msgspec.Meta(ge=0)] = 4


@dataclasses.dataclass(frozen=True)
class Questions:
  """What a sweep file asks, in its `PLAN`.

  Attributes:
    baseline: the arm that others are compared with; "": the first one.
    contrasts: pairs (arm, reference); none: every arm against the baseline.
    metric: the metric that is compared, as evaluations record it.
    split: the split that it is measured on.
    better: which values of it are better.
    margin: a difference that is too small to matter, as a share of the reference's mean.
    spread: the expected standard deviation of the metric over seeds; None: not known.
    seeds: the seeds of every arm.
    stopping: when the sweep ends, in words.
    tuning: how learning rates are found; None: as the config says.
  """

  baseline: str = ""
  contrasts: tuple[tuple[str, str], ...] = ()
  metric: str = "bits_per_byte"
  split: str = "validation"
  better: Literal["lower", "higher"] = "lower"
  margin: _Positive = 0.0025
  spread: _Positive | None = None
  seeds: tuple[_Seed, ...] = ()
  stopping: str = "all arms with all seeds"
  tuning: Tuning | None = None

  @property
  def key(self) -> str:
    """The name of the metric in the records of a run."""
    return f"{self.split}/{self.metric}"


@dataclasses.dataclass(frozen=True)
class Arm:
  """An arm of the plan.

  Attributes:
    overrides: the settings that tell it from the others.
    steps: the steps of each of its runs.
    tokens: the tokens of each of its runs.
    config: the SHA-256 of its config with the options of all systems of resjax, without seed,
      folder and what tuning finds.
  """

  overrides: dict[str, Any]
  steps: int
  tokens: int
  config: str


@dataclasses.dataclass(frozen=True)
class Change:
  """A change of the plan when there were runs.

  Attributes:
    time: when it was noticed, in seconds since 1970.
    what: what changed.
  """

  time: float
  what: str


@dataclasses.dataclass(frozen=True)
class Plan:
  """The content of `plan.json`.

  Attributes:
    questions: what the sweep file asks, its contrasts written out.
    arms: the arms by name, in order.
    code: the commit of the code, if it is known.
    time: when the plan was written, in seconds since 1970.
    date: the same in words (UTC).
    changes: what was changed after the first run had begun.
    tuned: for each arm the values that tuning found.
  """

  questions: Questions
  arms: dict[str, Arm]
  code: str | None
  time: float
  date: str
  changes: tuple[Change, ...] = ()
  tuned: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

  @property
  def seeds(self) -> tuple[int, ...]:
    """The seeds of every arm."""
    return self.questions.seeds

  @property
  def contrasts(self) -> list[Contrast]:
    """The planned contrasts."""
    return [Contrast(*pair) for pair in self.questions.contrasts]


def questions(
  declared: Any, arms: Sequence[str], baseline: str = "", seeds: Sequence[int] = ()
) -> Questions:
  """Returns the questions of a sweep file, with the baseline and all contrasts written out.

  Args:
    declared: the `PLAN` of the file, a mapping of fields of `Questions`; {}: none.
    arms: the names of the arms.
    baseline: the arm that others are compared with, instead of the file's; "": the file's.
    seeds: the seeds of every arm, instead of the file's; empty: the file's.

  Raises:
    ValueError: a field is unknown or has another type, an arm has another name, a seed is named
      twice, or the seed of tuning is also a seed of the comparison.
  """
  if not isinstance(declared, Mapping):
    raise ValueError(f"PLAN is {declared!r}: a dict is allowed")
  _check_keys(declared, Questions, "PLAN")
  if isinstance(declared.get("tuning"), Mapping):
    _check_keys(declared["tuning"], Tuning, "PLAN.tuning")
  found = typed_json.convert(dict(declared), Questions, "PLAN")
  first = baseline or found.baseline or arms[0]
  pairs = found.contrasts or tuple((arm, first) for arm in arms if arm != first)
  for name in [first, *(name for pair in pairs for name in pair)]:
    if name not in arms:
      hint = ranges.hint(name, arms, f"the sweep has {', '.join(arms)}")
      where = "--baseline" if name == baseline else "PLAN"
      raise ValueError(f"{where}: there is no arm {name!r}; {hint}")
  for arm, reference in pairs:
    if arm == reference:
      raise ValueError(f"PLAN.contrasts compares {arm!r} with itself; name another arm")
  found = dataclasses.replace(found, baseline=first, contrasts=pairs)
  found = dataclasses.replace(found, seeds=tuple(seeds) or found.seeds)
  if len(set(found.seeds)) < len(found.seeds):
    raise ValueError(f"seeds {', '.join(map(str, found.seeds))}: each may be named once")
  if found.tuning is not None:
    _check_tuning(found.tuning, found.seeds)
  return found


def _check_keys(given: Mapping[str, Any], kind: type, where: str) -> None:
  known = [field.name for field in dataclasses.fields(kind)]
  for key in given:
    if key not in known:
      raise ValueError(f"{where}: {key!r} is not a field; {ranges.hint(key, known)}")


def _check_tuning(tuning: Tuning, seeds: Sequence[int]) -> None:
  if tuning.seed in seeds:
    raise ValueError(
      f"seed {tuning.seed} is that of PLAN.tuning; the seeds of a comparison must be fresh"
    )
  for setting, factors in tuning.settings.items():
    if len(factors) < 3 or list(factors) != sorted(set(factors)) or 1 not in factors:
      raise ValueError(
        f"PLAN.tuning.settings: {setting} has the factors {list(factors)}: at least 3 that grow, "
        "with 1 among them, are allowed"
      )


def make(asked: Questions, runs: Sequence[SweepRun], code: str | None, now: float) -> Plan:
  """Returns the plan of runs, one of each arm at least."""
  arms: dict[str, Arm] = {}
  for run in runs:
    if run.arm not in arms:
      arms[run.arm] = _arm(run)
  date = datetime.datetime.fromtimestamp(int(now), datetime.UTC).isoformat(" ")
  return Plan(asked, arms, code, now, date)


def _arm(run: SweepRun) -> Arm:
  overrides = {key: value for key, value in run.overrides.items() if key != "seed"}
  config = run.config.copy_and_resolve_references()
  for name in combinators.names(shipped=True):
    config_tree.add_system(config.model.residual, name)
  values = config.to_dict()
  for name in ("workdir", "seed"):
    del values[name]
  text = json.dumps(values, sort_keys=True, default=list)
  steps = run.config.train.steps
  return Arm(
    overrides=json.loads(json.dumps(overrides, default=list)),
    steps=steps,
    tokens=steps * run.config.train.batch_size * run.config.data.seq_len,
    config=hashlib.sha256(text.encode()).hexdigest(),
  )


def settle(folder: Location, wanted: Plan, begun: bool) -> Plan:
  """Returns the plan of a sweep, which is written if there is none yet.

  Before the first run another plan takes its place. Later the old one keeps its date, and notes
  what changed. What tuning found stays where neither its grid nor the arm changed.

  Args:
    folder: the workdir of the sweep.
    wanted: the plan as the sweep file and the command line are now.
    begun: whether there are runs.
  """
  found = read(folder)
  if found is None and begun:
    late = Change(wanted.time, "it was written after the first run")
    wanted = dataclasses.replace(wanted, changes=(late,))
  changed = [] if found is None else _differences(found, wanted)
  if found is not None and not changed:
    return found
  if found is not None and begun:
    change = Change(wanted.time, "; ".join(changed))
    same = found.questions.tuning == wanted.questions.tuning
    kept = {a: v for a, v in found.tuned.items() if same and found.arms[a] == wanted.arms.get(a)}
    wanted = dataclasses.replace(
      found,
      questions=wanted.questions,
      arms=wanted.arms,
      changes=(*found.changes, change),
      tuned=kept,
    )
  write(folder, wanted)
  return wanted


def _differences(old: Plan, new: Plan) -> list[str]:
  """Returns in words what two plans ask differently."""
  before, after = (_plain(plan) for plan in (old, new))
  lines = [
    f"{key} was {before[key]} and is {after[key]}" for key in before if before[key] != after[key]
  ]
  for name in {**old.arms, **new.arms}:
    if name not in new.arms:
      lines.append(f"arm {name} was dropped")
    elif name not in old.arms:
      lines.append(f"arm {name} was added")
    elif old.arms[name] != new.arms[name]:
      lines.append(f"the settings of {name} were changed")
  return lines


def _plain(plan: Plan) -> dict[str, Any]:
  # msgspec would leave out the defaults of what it has read itself.
  found = json.loads(json.dumps(dataclasses.asdict(plan.questions)))
  return {**found, "contrasts": sorted(found["contrasts"])}  # whose order asks nothing


def read(folder: Location) -> Plan | None:
  """Returns the plan in the workdir of a sweep; None if there is none.

  Raises:
    ValueError: the file is damaged.
  """
  try:
    return typed_json.read(folder / FILE_NAME, Plan)
  except FileNotFoundError:
    return None
  except ValueError as error:
    raise ValueError(f"{error}; restore it, or choose another config.workdir") from None


def write(folder: Location, plan: Plan) -> None:
  """Writes a plan into the workdir of a sweep."""
  locations.make_folder(folder, "config.workdir")
  content = json.dumps(dataclasses.asdict(plan), indent=2, allow_nan=False)
  locations.write_text(folder / FILE_NAME, content + "\n")


def exploratory(plan: Plan, begun: Mapping[str, float]) -> list[str]:
  """Returns reasons why the results of a sweep need a test on new seeds; empty if none do.

  Args:
    plan: its plan.
    begun: when each run wrote its first record, in seconds since 1970, by name.
  """
  reasons = [f"plan: {change.what}" for change in plan.changes]
  early = [name for name, time in begun.items() if time < plan.time]
  if early:
    more = f" and {len(early) - 1} more" if len(early) > 1 else ""
    reasons.insert(0, f"the plan of {plan.date} is younger than the records of {early[0]}{more}")
  return reasons
