"""The runs that a sweep asks for: every arm with every seed."""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from resjax.base import locations, ranges
from resjax.study import config_tree

_OPTIONS = "model.residual."
_SYSTEM = f"{_OPTIONS}name"
_ARM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclasses.dataclass(frozen=True)
class SweepRun:
  """One run of a sweep.

  Attributes:
    name: the name of the run and of its folder: the arm, or ARM/seed_SEED.
    arm: the name that the sweep gives to these overrides.
    seed: its seed of those that all arms have; None in a sweep without seeds.
    overrides: the values of dotted settings that tell this run from the others.
    config: the whole config; its workdir is the folder `name` in the workdir of the sweep.
  """

  name: str
  arm: str
  seed: int | None
  overrides: Mapping[str, Any]
  config: ConfigDict


def expand(
  config: ConfigDict, sweep: Iterable[tuple[str, Mapping[str, Any]]], seeds: Sequence[int] = ()
) -> list[SweepRun]:
  """Returns the runs of a sweep, each with the whole config.

  They go seed by seed, so that a sweep that is stopped leaves complete pairs.

  Args:
    config: the config that all runs share, which is not changed.
    sweep: names and dotted overrides, such as ("long", {"train.steps": 10}).
    seeds: the seeds of every arm; empty: each arm runs once, with the seed of its config.

  Raises:
    ValueError: There is no run, a name is used twice or cannot name a folder, an override has the
      wrong type or no setting of that name, or an arm sets the seed and `seeds` does too.
  """
  arms: dict[str, Mapping[str, Any]] = {}
  if not isinstance(sweep, Iterable):
    raise ValueError(f"sweep(config) returned {sweep!r}; allowed: pairs of a name and overrides")
  for run in sweep:
    if not (isinstance(run, tuple) and [*map(type, run)] == [str, dict]):
      raise ValueError(
        f"sweep(config) gave {run!r}; allowed: pairs of a name and a dict of overrides"
      )
    name, overrides = run
    if name in arms:
      raise ValueError(f"the sweep has two runs named {name!r}; names must differ")
    if not _ARM.fullmatch(name):
      raise ValueError(f"run {name!r}: a name may hold letters, digits, dots, - and _")
    if seeds and "seed" in overrides:
      raise ValueError(f"run {name!r} sets seed, as --seeds does; leave one of them out")
    arms[name] = overrides
  if not arms:
    raise ValueError("the sweep has no runs")
  if not seeds:
    return [make_run(config, name, name, None, overrides) for name, overrides in arms.items()]
  return [
    with_seed(config, arm, overrides, seed) for seed in seeds for arm, overrides in arms.items()
  ]


def with_seed(
  config: ConfigDict, arm: str, overrides: Mapping[str, Any], seed: int, folder: str = ""
) -> SweepRun:
  """Returns the run of an arm with a seed, in ARM/seed_SEED or in ARM/`folder`."""
  name = f"{arm}/{folder or f'seed_{seed}'}"
  return make_run(config, name, arm, seed, {**overrides, "seed": seed})


def make_run(
  config: ConfigDict, name: str, arm: str, seed: int | None, overrides: Mapping[str, Any]
) -> SweepRun:
  """Returns a run whose config has the overrides, and the folder `name` in the workdir.

  Raises:
    ValueError: an override has the wrong type, or there is no setting of that name.
  """
  config = config.copy_and_resolve_references()
  no_system = _add_system(config, overrides.get(_SYSTEM))
  try:
    config_tree.add_sections(config, overrides)
    config_tree.add_corpora(config, overrides)
  except ValueError as error:
    raise ValueError(f"run {arm!r}: {error}") from None
  settings = config_tree.flat(config.to_dict())
  for key in overrides:
    if key not in settings and no_system and key.startswith(_OPTIONS):
      raise ValueError(f"run {arm!r}: {no_system}")
    if key not in settings:
      near = difflib.get_close_matches(key, settings, 1)
      hint = f"; did you mean {near[0]!r}?" if near else ""
      raise ValueError(f"run {arm!r}: {key!r} is not a setting{hint}")
  overrides = {key: ranges.plain(value, type(settings[key])) for key, value in overrides.items()}
  try:
    config.update_from_flattened_dict(overrides)
  except TypeError as error:
    raise ValueError(f"run {arm!r}: {error}") from None
  config.workdir = str(locations.path(config.workdir, "config.workdir") / name)
  return SweepRun(name, arm, seed, overrides, config)


def _add_system(config: ConfigDict, name: Any) -> str:
  """Adds the options of the combinator whose name an override gives to a config.

  Returns:
    Why there are none, or nothing. A run without options says so itself when it is built.
  """
  if not isinstance(name, str):
    return ""
  try:
    config_tree.add_system(config.model.residual, name)
  except ValueError as error:
    return str(error)
  return ""
