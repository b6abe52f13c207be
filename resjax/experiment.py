"""The only place where a ConfigDict becomes dataclasses and objects."""

import dataclasses
import difflib
import typing
from collections.abc import Mapping
from typing import Any


def to_dataclass(cls: type, values: Mapping[str, Any], path: str = "config") -> Any:
  """Builds the frozen dataclass `cls` from a mapping with exactly its fields.

  Nested mappings become the dataclasses that the field annotations name.

  Args:
    cls: a dataclass type.
    values: field name to value; fields with a default may be missing.
    path: where `values` stands in the config, for messages.

  Raises:
    ValueError: a key is unknown, or a field without default is missing.
  """
  hints = typing.get_type_hints(cls)
  fields = {f.name: f for f in dataclasses.fields(cls)}
  for key in values:
    if key not in fields:
      near = difflib.get_close_matches(key, fields, 1)
      hint = f"; did you mean {near[0]!r}?" if near else f"; allowed: {', '.join(fields)}"
      raise ValueError(f"{path}.{key} is not a setting{hint}")
  kwargs = {}
  for name, value in values.items():
    hint = hints[name]
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
      value = to_dataclass(hint, value, f"{path}.{name}")
    kwargs[name] = value
  required = dataclasses.MISSING
  for name, field in fields.items():
    if name not in kwargs and field.default is required and field.default_factory is required:
      raise ValueError(f"{path}.{name} is missing")
  return cls(**kwargs)
