"""Settings as values of Python: read into dataclasses, and checked for types and ranges.

Combinators check their options here, so that it needs no package but NumPy; JSON of strangers is
read by `typed_json`.
"""

import dataclasses
import difflib
import math
import numbers
import os
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, Union

import numpy as np

MOST = 2**31 - 1  # of a whole number: JAX counts in 32 bits
MAX_SEED = 2**32 - 1  # JAX takes 32 bits of a seed, so that larger ones would be others again
AS_SEED = -1  # of a seed of one purpose: config.seed decides
_LEAST_FLOAT, _MOST_FLOAT = 1.18e-38, 3.4e38  # of float32 without zeros

T = TypeVar("T")


def hint(name: Any, known: Iterable[str], otherwise: str = "") -> str:
  """Returns which name was meant by an unknown one, else `otherwise`, by default all of them."""
  known = list(known)
  near = difflib.get_close_matches(str(name), known, 1)
  return f"did you mean {near[0]!r}?" if near else otherwise or f"allowed: {', '.join(known)}"


def check_keys(
  values: Iterable[str], known: Iterable[str], needed: Iterable[str], path: str
) -> None:
  """Raises ValueError where a section of settings has an unknown key, or lacks a needed one."""
  known, values = list(known), list(values)
  for key in values:
    if key not in known:
      raise ValueError(f"{path}.{key} is not a setting; {hint(key, known)}")
  for key in needed:
    if key not in values:
      raise ValueError(f"{path}.{key} is missing")


def read(cls: type[T], values: Mapping[str, Any], path: str) -> T:
  """Returns an instance of a dataclass with the values of a mapping that has exactly its fields.

  Nested mappings, and those in tuples, become the dataclasses that the annotations of the fields
  name.

  Args:
    cls: a dataclass.
    values: the values by name of the field; keys of fields with a default may be missing.
    path: the path of the mapping in the config, for messages.

  Raises:
    ValueError: a key is not a field, or the value of a field without a default is missing.
  """
  fields: Any = dataclasses.fields(typing.cast(Any, cls))
  missing = dataclasses.MISSING
  needed = [f.name for f in fields if f.default is f.default_factory is missing]
  check_keys(values, [f.name for f in fields], needed, path)
  hints = typing.get_type_hints(cls)
  return cls(**{key: _typed(one, hints[key], f"{path}.{key}") for key, one in values.items()})


def _typed(value: Any, kind: Any, path: str) -> Any:
  """Returns the value of a field with this annotation; JSON has lists in place of tuples."""
  if typing.get_origin(kind) is tuple and isinstance(value, tuple | list):
    each = typing.get_args(kind)[0]
    return tuple(_typed(one, each, f"{path}[{i}]") for i, one in enumerate(value))
  if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
    return read(typing.cast(type, kind), value, path)
  return plain(value, kind)


def plain(value: Any, kind: Any = None) -> Any:
  """Returns a setting as a value of Python, whichever library it comes from.

  Numbers and arrays of NumPy, JAX and others become numbers and lists, and paths become texts, in
  lists and mappings too. A class or dtype of a number becomes its name. A float that is whole
  becomes a whole number where one is wanted: a table of numbers, as of pandas, has floats alone.

  Args:
    value: the setting.
    kind: its annotation, see `check_type`; None: whole floats stay floats.
  """
  origin, inner = typing.get_origin(kind), typing.get_args(kind)
  each, one_of = (inner[0], ()) if origin is tuple and inner else (None, inner)
  if isinstance(value, os.PathLike):
    return os.fspath(value)
  if isinstance(value, Mapping):
    return {key: plain(one) for key, one in value.items()}
  if isinstance(value, list | tuple):
    found = [plain(one, each) for one in value]
    return found if isinstance(value, list) else tuple(found)
  if isinstance(value, type | np.dtype):
    return value.__name__ if isinstance(value, type) else value.name
  if hasattr(value, "tolist"):
    return plain(value.tolist(), kind)
  if isinstance(value, float) and value.is_integer() and int in (kind, *one_of):
    return int(value)
  return value


def shown(value: Any) -> str:
  """Returns a value for a message: on one line, and not longer than 80 characters or so."""
  text = " ".join(repr(value).split())
  return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def check_types(
  config: Any, section: str, most: Mapping[str, int] | None = None, ranged: bool = False
) -> None:
  """Raises ValueError where a field of a dataclass has another type than its annotation.

  Args:
    config: the dataclass; those in its fields are checked too.
    section: the name of its section, such as config.train, for the message.
    most: the largest value of whole numbers, by field; default: `MOST`.
    ranged: whether `check_ranges` follows, which has the message for numbers that are not finite.
  """
  for name, kind in _annotations(type(config)).items():
    value = getattr(config, name)
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if is_finite or not ranged or kind not in (int, float):
      check_type(value, kind, f"{section}.{name}", (most or {}).get(name, MOST))


def check_type(value: Any, kind: Any, where: str, most: int = MOST) -> None:
  """Raises ValueError unless a value has a type, and a number is finite and of a sane size.

  A whole number may stand for a float, and a list for a tuple.

  Args:
    value: the value.
    kind: the annotation: bool, int, float, str, tuples and unions of these, or a dataclass; values
      of other annotations are not checked.
    where: the name of the setting.
    most: the largest allowed magnitude of whole numbers.
  """
  if needed := wrong(value, kind, most):
    raise ValueError(f"{where}={shown(value)} must be {needed}")
  if dataclasses.is_dataclass(kind):
    check_types(value, where)


def wrong(value: Any, kind: Any, most: int) -> str:
  """Returns in words what is allowed instead of a value, or an empty text; see `check_type`."""
  origin, inner = typing.get_origin(kind), typing.get_args(kind)
  if origin in (Union, types.UnionType):
    found = [wrong(value, one, most) for one in inner]
    return "" if "" in found else " or ".join(found)
  if origin is tuple:
    return _wrong_tuple(value, inner, most)
  if kind is types.NoneType:
    return "" if value is None else "None"
  if kind is bool:
    return "" if isinstance(value, bool) else "True or False"
  if kind is str:
    if not isinstance(value, str):
      return "a text"
    # TensorStore cannot open what is no UTF-8, and no file can have a zero in its name.
    return "" if "\0" not in value and is_utf8(value) else "a text in UTF-8 without zeros"
  is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
  if kind is int:
    if not is_number or not isinstance(value, numbers.Integral):
      return "a whole number"
    return "" if abs(int(value)) <= most else f"a whole number of at most {most:,}"
  if kind is float:
    is_large = isinstance(value, numbers.Integral) and abs(int(value)) > _MOST_FLOAT
    if not is_number or is_large or not math.isfinite(value):
      return "a finite number"
    sane = value == 0 or _LEAST_FLOAT <= abs(float(value)) <= _MOST_FLOAT
    return "" if sane else f"0 or, without its sign, in {_LEAST_FLOAT:g}..{_MOST_FLOAT:g} (float32)"
  if dataclasses.is_dataclass(kind):
    return "" if isinstance(value, typing.cast(type, kind)) else "a section of settings"
  return ""


def is_utf8(text: str) -> bool:
  """Returns whether a text can be written as UTF-8, which bytes of a command line may not be."""
  try:
    text.encode()
  except UnicodeEncodeError:
    return False
  return True


def _wrong_tuple(value: Any, inner: tuple[Any, ...], most: int) -> str:
  kinds = inner[:1] if inner[-1:] == (...,) else inner
  names = {int: "whole numbers", float: "numbers", str: "texts"}
  wanted = f"a tuple of {names.get(kinds[0], 'values')}" if kinds else "a tuple"
  if not isinstance(value, tuple | list):
    return wanted
  if inner[-1:] != (...,):
    right = len(value) == len(kinds)
    return "" if right and not any(map(wrong, value, kinds, [most] * len(kinds))) else wanted
  return wanted if any(wrong(one, kinds[0], most) for one in value) else ""


def _annotations(kind: type) -> Mapping[str, Any]:
  hints = typing.get_type_hints(kind)
  return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def check_seed(value: Any, where: str, least: int = 0) -> None:
  """Raises ValueError unless a value is a seed.

  Args:
    value: the value.
    where: the name of the setting.
    least: the smallest allowed value, 0 or `AS_SEED`.
  """
  check_type(value, int, where, MAX_SEED)
  if value < least:
    also = f" or {AS_SEED}, as config.seed" if least == AS_SEED else ""
    raise ValueError(f"{where}={value} must be in 0..{MAX_SEED}{also}")


def check_least(config: Any, section: str, least: Mapping[str, float]) -> None:
  """Raises ValueError where a setting is smaller than allowed.

  Args:
    config: an object that has the settings as attributes.
    section: the name of its section, such as config.train, for the message.
    least: the smallest allowed value of each setting, by name.
  """
  for name, smallest in least.items():
    value = getattr(config, name)
    if not value >= smallest:
      raise ValueError(f"{section}.{name}={value} must be at least {smallest}")


def check_ranges(config: Any, section: str, ranges: Mapping[str, tuple[bool, str]]) -> None:
  """Raises ValueError where a setting is not finite or not in its range.

  Args:
    config: an object that has the settings as attributes.
    section: the name of its section, such as config.train, for the message.
    ranges: by name of a setting, whether it is in its range, and the range in words.
  """
  for name, (fits, allowed) in ranges.items():
    value = getattr(config, name)
    if not (fits and math.isfinite(value)):
      raise ValueError(f"{section}.{name}={value} must be finite and {allowed}")
