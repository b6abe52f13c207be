"""Checks the arguments of methods of models, so that mistakes are errors of one line."""

import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, Union

from resjax.base import ranges

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_LISTS = (Sequence, Collection)
_PLURALS = {str: "texts", int: "whole numbers"}


def checked(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
  """Returns a function that raises ValueError if an argument does not have its annotated type.

  Numbers and lists may come from other libraries, see `ranges.plain`. Mappings are left to the
  function, and so are annotations of other kinds than numbers, texts, paths, classes, and lists of
  them.
  """

  @functools.wraps(function)
  def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
    try:
      given = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:  # Python says it better
      return function(*args, **kwargs)
    kinds = _kinds(function)
    for name, value in given.arguments.items():
      kind = kinds.get(name)
      if _wrong(value, kind):
        given.arguments[name] = ranges.plain(value, kind)
      if wrong := _wrong(given.arguments[name], kind):
        raise ValueError(f"{name}={ranges.shown(value)} must be {wrong}")
    return function(*given.args, **given.kwargs)

  return call


def check_least(least: int, **values: int) -> None:
  """Raises ValueError where a number, given by its name, is smaller than allowed."""
  for name, value in values.items():
    if value < least:
      raise ValueError(f"{name}={value} must be at least {least}")


def _kinds(function: Callable[..., Any]) -> dict[str, Any]:
  """Returns the annotations of arguments; a result's may name modules that are not imported."""
  annotations = {key: one for key, one in function.__annotations__.items() if key != "return"}
  holder = types.SimpleNamespace(__annotations__=annotations)
  return typing.get_type_hints(holder, function.__globals__)


def _wrong(value: Any, kind: Any) -> str:
  """Returns in words what is allowed instead of a value, or an empty text."""
  origin, inner = typing.get_origin(kind), typing.get_args(kind)
  if origin in (Union, types.UnionType):
    found = [_wrong(value, one) for one in inner]
    return "" if "" in found else " or ".join(found)
  if origin in _LISTS:
    is_list = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    fits = is_list and not any(_wrong(one, inner[0]) for one in value)
    plural = _PLURALS.get(inner[0], "models, each an Experiment or a Pretrained")
    return "" if fits else f"a list of {plural}"
  if kind is os.PathLike:
    return "" if isinstance(value, os.PathLike) else "a path"
  if inspect.isclass(kind) and kind.__module__.startswith("resjax."):
    return "" if isinstance(value, kind) else f"of type {kind.__name__}"
  return ranges.wrong(value, kind, ranges.MAX_SEED)
