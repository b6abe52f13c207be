"""The parts of a run: which settings, versions and devices its steps were trained with."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from resjax.study import config_tree
from resjax.train.runs.environment import Environment

_ABSENT = object()


@dataclasses.dataclass(frozen=True)
class Part:
  """Consecutive steps that were trained with the same settings in the same environment.

  Attributes:
    first_step: the number of the first of them; the next part begins where they end.
    settings: the values of settings by dotted name: all, or only those in which the parts of the
      run differ.
    environment: software, hardware and variables that computed them.
  """

  first_step: Annotated[int, msgspec.Meta(ge=1)]
  settings: dict[str, Any]
  environment: Environment


@dataclasses.dataclass(frozen=True)
class Change:
  """What is different in the next part of a run.

  Attributes:
    name: a setting, such as config.optim.learning_rate, a package, or another name of
      `Environment.facts`.
    was: the value before; None where there was none.
    now: the value from then on; None where there is none.
  """

  name: str
  was: Any
  now: Any

  def __str__(self) -> str:
    plain = not self.name.startswith("config.")
    was, now = (str(v) if plain else repr(v) for v in (self.was, self.now))
    return f"{self.name} was {was} and is {now}"


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings of a resolved config that count, but for the place of the run."""
  return {k: v for k, v in config_tree.in_use(config).items() if k != "workdir"}


def continued(parts: Sequence[Part], now: Part) -> list[Part]:
  """Returns the parts of a run that continues with `now`; parts from its first step on are dropped.

  Where nothing changed, the last part goes on.
  """
  kept = [part for part in parts if part.first_step < now.first_step]
  same = kept and dataclasses.replace(now, first_step=kept[-1].first_step) == kept[-1]
  return kept if same else [*kept, now]


def at(parts: Sequence[Part], step: int) -> Part | None:
  """Returns the part that trained a step; None where no part did."""
  return next((part for part in reversed(parts) if part.first_step <= step), None)


def short(parts: Sequence[Part]) -> list[Part]:
  """Returns parts with those settings alone in which they differ."""
  names = dict.fromkeys(name for part in parts for name in part.settings)
  alike = {
    name
    for name in names
    if all(p.settings.get(name, _ABSENT) == parts[-1].settings.get(name, _ABSENT) for p in parts)
  }
  return [
    dataclasses.replace(p, settings={k: v for k, v in p.settings.items() if k not in alike})
    for p in parts
  ]


def whole(parts: Sequence[Part], config: Mapping[str, Any]) -> list[Part]:
  """Returns parts that `short` returned with all their settings; the last ones are the config's."""
  differing = {name for part in parts for name in part.settings}
  alike = {name: value for name, value in settings(config).items() if name not in differing}
  return [dataclasses.replace(part, settings=alike | part.settings) for part in parts]


def changes(before: Part, now: Part) -> list[Change]:
  """Returns what differs between two parts, settings first; commands are not compared.

  Where the set of sharding rules changed, only its name is returned. Facts that the first part has
  no record of, because of an earlier release, are left out.
  """
  old, new = before.settings, now.settings
  names = [name for name in {**old, **new} if old.get(name, _ABSENT) != new.get(name, _ABSENT)]
  if "sharding.name" in names:
    names = [name for name in names if not name.startswith("sharding.") or name == "sharding.name"]
  found = [Change(f"config.{name}", old.get(name), new.get(name)) for name in names]
  was, facts = before.environment.facts, now.environment.facts
  known = {**was, **now.environment.variables}
  others = [name for name in known if was.get(name) != facts.get(name)]
  return found + [Change(name, was.get(name), facts.get(name)) for name in others]


def marks(parts: Sequence[Part]) -> list[tuple[float, str]]:
  """Returns where settings, versions or devices of a run changed, and the number of the part.

  A mark stands between the last step of a part and the first one of the next.
  """
  return [
    (part.first_step - 0.5, str(number))
    for number, (before, part) in enumerate(itertools.pairwise(parts), 2)
    if changes(before, part)
  ]
