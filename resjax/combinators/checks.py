"""Options of combinators, which are checked where a class takes them."""

from collections.abc import Collection
from typing import TypeVar

_Value = TypeVar("_Value")


def check_option(name: str, value: _Value, ok: bool, allowed: str) -> _Value:
  """Returns an option; raises a ValueError with its value and what is allowed, unless `ok`."""
  if not ok:
    raise ValueError(f"{name}={value!r} is out of range; allowed: {allowed}")
  return value


def check_choice(name: str, value: _Value, allowed: Collection) -> _Value:
  """Returns an option; raises a ValueError unless it is one of those allowed."""
  return check_option(name, value, value in allowed, ", ".join(map(str, allowed)))


def check_flag(name: str, value: _Value) -> _Value:
  """Returns an option; raises a ValueError unless it is True or False."""
  return check_option(name, value, isinstance(value, bool), "True, False")
