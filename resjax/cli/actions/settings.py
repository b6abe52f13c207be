"""The config that a name, a file or a mapping stands for, with other values for some settings."""

import importlib.util
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from resjax.base import ranges
from resjax.cli import shipped
from resjax.study import config_tree

Overrides = Mapping[str, Any]

_COMBINATOR = "model.residual.name"


def read_config(
  source: str | os.PathLike | Mapping[str, Any] | ConfigDict, overrides: Overrides
) -> ConfigDict:
  """Returns a config of its own, with the settings of a source and some overrides.

  Args:
    source: the name of a config that comes with resjax, such as `tiny`, or the path of a file, each
      also with an argument as in `base:gpt2`; or a config.
    overrides: see `overridden`.

  Raises:
    ValueError: there is no such config or setting, or a value has another type.
  """
  if not isinstance(source, (str, os.PathLike, Mapping, ConfigDict)):
    raise ValueError(f"config={source!r}; give a name such as 'tiny', a path, or a ConfigDict")
  _check_mapping(overrides)
  if isinstance(source, ConfigDict):
    config = source
  elif isinstance(source, Mapping):
    config = ConfigDict(dict(source))
  else:
    config = _from_file(os.fspath(source))
  residual = config_tree.residual_of(config)
  # The user's own config may choose a combinator, as overrides may.
  own = {} if residual is None or "name" not in residual else {_COMBINATOR: residual.name}
  return overridden(config, {**own, **overrides})


def overridden(config: ConfigDict, overrides: Overrides) -> ConfigDict:
  """Returns a copy of a config with other values for some settings.

  Args:
    config: the config.
    overrides: values by the name of the setting without `config.`, such as `train.steps`; or by the
      name of a section, whose value is a mapping of the same kind. Numbers and arrays may be those
      of NumPy or JAX, see `ranges.plain`. The class of a combinator that they choose is imported,
      and its options can be set.

  Raises:
    ValueError: there is no such setting or combinator, or a value has another type.
  """
  _check_mapping(overrides)
  config = config.copy_and_resolve_references()
  values = config_tree.flat(overrides)
  _add_options(config, values.get(_COMBINATOR))
  config_tree.add_sections(config, values)
  config_tree.add_corpora(config, values)
  config.lock()
  for name, value in values.items():
    *sections, key = name.split(".")
    section, path = config, "config"
    for inner in sections:
      section, path = _section(section, inner, path), f"{path}.{inner}"
    _set(section, key, value, path)
  return config


def _check_mapping(overrides: Any) -> None:
  if not isinstance(overrides, Mapping):
    raise ValueError(f"overrides={overrides!r}; give a mapping, such as {{'train.steps': 20}}")


def _add_options(config: ConfigDict, name: Any) -> None:
  """Adds the options of the combinator that a user chooses, which few config files have."""
  residual = config_tree.residual_of(config)
  if residual is None or not isinstance(name, str):
    return
  try:
    config_tree.add_system(residual, name)
  except ValueError as error:
    raise ValueError(f"config.{_COMBINATOR}: {error}") from None


def _from_file(source: str) -> ConfigDict:
  """Returns what `get_config` of a config file returns."""
  name, _, argument = source.partition(":")
  path = shipped.config_file(name)
  with shipped.imports_of(path):
    get_config, arguments = _get_config(path), [argument] if argument else []
    try:
      inspect.signature(get_config).bind(*arguments)
    except TypeError as error:
      raise ValueError(f"{path}: get_config() was given {argument!r}: {error}") from None
    made = get_config(*arguments)
  if not isinstance(made, ConfigDict):
    kind = type(made).__name__
    raise ValueError(f"{path}: get_config() must return a ConfigDict, and returns {kind}")
  return made


def _get_config(path: Path) -> Callable[..., Any]:
  spec = importlib.util.spec_from_file_location("resjax_config", path)
  if spec is None or spec.loader is None:
    raise ValueError(f"{path} is no file of Python; the name of a config file ends in .py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  if not hasattr(module, "get_config"):
    raise ValueError(f"{path} has no function get_config(), which returns the settings")
  return module.get_config


def _section(config: ConfigDict, key: str, path: str) -> ConfigDict:
  _check_key(config, key, path)
  if not isinstance(config[key], ConfigDict):
    raise ValueError(f"{path}.{key} is a value, {config[key]!r}; it has no settings of its own")
  return config[key]


def _check_key(config: ConfigDict, key: str, path: str) -> None:
  if key in config:
    return
  raise ValueError(f"{path}.{key} is not a setting; {ranges.hint(key, config.keys())}")


def _set(section: ConfigDict, key: str, value: Any, path: str) -> None:
  _check_key(section, key, path)
  path, before = f"{path}.{key}", section[key]
  if isinstance(before, ConfigDict):
    raise ValueError(f"{path}={value!r}: that is a section; give {{'NAME': VALUE}}, or {path}.NAME")
  try:
    section[key] = ranges.plain(value, type(before))
  except TypeError:
    wanted = type(before).__name__
    raise ValueError(
      f"{path}={ranges.shown(value)} must be of type {wanted}, as {before!r} is"
    ) from None
