"""Configs as trees: settings by dotted names, and the section of the combinators in them."""

import json
from collections.abc import Mapping
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
  """Returns the settings of a config by their dotted names, as JSON has them, where they count.

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
  section = config
  for name in ("model", "residual"):
    section = section[name] if isinstance(section, ConfigDict) and name in section else None
  return section if isinstance(section, ConfigDict) else None


def add_system(residual: ConfigDict, name: str) -> None:
  """Adds the section of the combinator that a user chooses, see `combinators.missing_section`.

  Args:
    residual: config.model.residual, which is changed; it may be locked.
    name: the system.

  Raises:
    ValueError: there is no such combinator, or it cannot be imported.
  """
  from resjax import combinators  # takes a second, which a config of resjax need not wait for

  found = combinators.missing_section(residual, name)
  with residual.unlocked():
    residual.update(found)
