"""Configs as trees: settings by dotted names, and sections that users add to them."""

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

_CHOICES = ("model.residual", "sharding")  # sections with a section for each name


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Returns the settings of a config by their dotted names."""
  found: dict[str, Any] = {}
  for key, value in config.items():
    inner = isinstance(value, Mapping)
    found |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
  return found


def in_use(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the JSON values of the settings in use, by dotted name.

  The options of residual systems and of sharding rules that are not chosen are left out.
  """
  found = json.loads(json.dumps(flat(config)))  # tuples become lists
  return {name: value for name, value in found.items() if _counts(name, found)}


def _counts(name: str, settings: Mapping[str, Any]) -> bool:
  from resjax.combinators import section  # takes a second, which a config need not wait for

  for folder in _CHOICES:
    inner = name.removeprefix(f"{folder}.").partition(".")
    if name.startswith(f"{folder}.") and inner[1]:
      return inner[0] == section(str(settings.get(f"{folder}.name")))
  return True


def residual_of(config: Any) -> ConfigDict | None:
  """Returns the section config.model.residual, None where there is none."""
  return _section_of(config, "model", "residual")


def _section_of(config: Any, *names: str) -> ConfigDict | None:
  section = config
  for name in names:
    section = section[name] if isinstance(section, ConfigDict) and name in section else None
  return section if isinstance(section, ConfigDict) else None


def add_system(residual: ConfigDict, name: str) -> None:
  """Adds the options of a combinator that a config says nothing of, with their defaults.

  It is for the user's own config, as it imports the class (see `combinators.load`).

  Args:
    residual: config.model.residual, which is changed; it may be locked.
    name: the combinator.

  Raises:
    ValueError: there is no such combinator, or it cannot be imported.
  """
  from resjax import combinators  # takes a second, which not every command need wait for

  key, whole = combinators.section(name), ConfigDict(combinators.settings(name))
  if key in residual:
    if not isinstance(residual[key], ConfigDict):  # whoever builds the config says so
      return
    with whole.ignore_type():  # likewise
      whole.update(residual[key])
  with residual.unlocked():
    residual[key] = whole


def add_section(residual: ConfigDict, key: str) -> None:
  """Adds the options of the combinator whose section a user names, see `add_system`.

  An existing section of a class from outside resjax is left unchanged.

  Raises:
    ValueError: there is no such section.
  """
  from resjax import combinators

  if key in combinators.names():
    add_system(residual, key)
  elif key not in residual:
    combinators.check_section(key)


def add_sections(config: Any, names: Iterable[str]) -> None:
  """Adds the options of the combinators whose settings are given, see `add_section`.

  Args:
    config: the config, which is changed; it may be locked.
    names: the names of settings, such as `model.residual.gate.granularity`; settings of other
      sections are ignored.

  Raises:
    ValueError: there is no such combinator.
  """
  residual = residual_of(config)
  parts = [name.split(".") for name in names if name.startswith("model.residual.")]
  for key in dict.fromkeys(part[2] for part in parts if len(part) > 3):
    if residual is not None:
      add_section(residual, key)


def add_corpora(config: Any, names: Iterable[str]) -> None:
  """Adds the corpora whose source is set and that a config does not have, with usual settings.

  Args:
    config: the config, which is changed; it may be locked.
    names: the names of settings, such as `data.corpora.code.source`; settings of other sections
      are ignored.

  Raises:
    ValueError: a setting belongs to a corpus that does not exist and gets no source.
  """
  corpora = _section_of(config, "data", "corpora")
  parts = [name.split(".") for name in names if name.startswith("data.corpora.")]
  given = [(part[2], part[3]) for part in parts if len(part) == 4]
  if corpora is None:
    return
  for name, key in given:
    if name in corpora:
      continue
    path = f"config.data.corpora.{name}"
    if (name, "source") not in given:
      near = difflib.get_close_matches(name, corpora.keys(), 1)
      meant = f"did you mean {near[0]!r}? " if near else ""
      known = f"there is no corpus {name!r} beside {', '.join(corpora.keys())}"
      raise ValueError(f"{path}.{key}: {known}; {meant}a new one needs {path}.source")
    from resjax.data import CorpusConfig  # takes a while that few configs need to wait

    with corpora.unlocked():
      corpora[name] = ConfigDict(dataclasses.asdict(CorpusConfig("")))
