"""Combinators of other packages: by entry point, or as `module:Class`.

Code is imported for names that the user gives, or that an installed package declares. A name that
is read from a file, such as the record of a run, imports nothing: see `registry.get`.
"""

import difflib
import functools
import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Mapping
from typing import Any

from resjax.combinators.base import SIZES, Combinator

GROUP = "resjax.combinators"  # of entry points
_FORM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_SETTABLE = (bool, int, float, str)  # and tuples of these


def is_import(name: str) -> bool:
  """Returns whether a name is that of a class in a module, `module:Class`."""
  return ":" in name


def section(name: str) -> str:
  """Returns the section of config.model.residual with the options of a system: name or class."""
  return name.rpartition(":")[2]


def import_class(name: str) -> type[Combinator]:
  """Returns the class of a name, after importing its module, which runs its code.

  Args:
    name: `module:Class`, such as my_package.gates:MyGate.

  Raises:
    ValueError: there is no such module or class, importing it fails, or it is no `Combinator`.
  """
  if not _FORM.fullmatch(name):
    raise ValueError(f"{name!r} names no class; allowed: module:Class, as in my_package:MyGate")
  module_name, _, class_name = name.partition(":")
  try:
    module = importlib.import_module(module_name)
  except ModuleNotFoundError as error:
    if not f"{module_name}.".startswith(f"{error.name}."):
      raise ValueError(f"{name!r} cannot be imported: {_one_line(error)}") from error
    raise ValueError(
      f"{name!r} cannot be imported: there is no module {error.name!r}; install its package, or "
      "put the folder that holds it in PYTHONPATH"
    ) from None
  except Exception as error:
    raise ValueError(f"{name!r} cannot be imported: {_one_line(error)}") from error
  if not hasattr(module, class_name):
    near = difflib.get_close_matches(class_name, _classes(module), 1) or _classes(module)
    hint = f"did you mean {near[0]!r}?" if near else "it holds no combinator"
    raise ValueError(f"module {module_name!r} has no class {class_name!r}; {hint}")
  cls = getattr(module, class_name)
  check_class(cls, name)
  return cls


def _classes(module: Any) -> list[str]:
  """Returns the names of the combinators that a module defines."""
  return [
    key
    for key, value in vars(module).items()
    if inspect.isclass(value) and issubclass(value, Combinator) and value is not Combinator
  ]


def check_class(cls: Any, name: str) -> None:
  """Raises a ValueError unless a class can be built by name, as `registry.build` does.

  Args:
    cls: the class.
    name: the name of the class in the registry, for the message.
  """
  if not (isinstance(cls, type) and issubclass(cls, Combinator)):
    raise ValueError(f"{name!r}: {cls!r} cannot be registered; allowed: subclasses of Combinator")
  if missing := sorted(map(str, getattr(cls, "__abstractmethods__", ()))):
    raise ValueError(f"{cls.__qualname__} ({name!r}) does not define {', '.join(missing)}")
  parameters = inspect.signature(cls).parameters
  if lost := [size for size in SIZES if size not in parameters]:
    raise ValueError(
      f"{cls.__qualname__} ({name!r}) does not take {', '.join(lost)}; let its __init__ take "
      "**options and hand them to super().__init__(**options)"
    )
  for key, parameter in parameters.items():
    if key not in SIZES and parameter.default is parameter.empty:
      raise ValueError(f"option {key!r} of {cls.__qualname__} ({name!r}) needs a default")


@functools.cache  # it reads the folders of all installed packages
def installed() -> Mapping[str, list[importlib.metadata.EntryPoint]]:
  """Returns the entry points of installed packages by name; nothing is imported."""
  found: dict[str, list[importlib.metadata.EntryPoint]] = {}
  for point in importlib.metadata.entry_points(group=GROUP):
    if point not in found.setdefault(point.name, []):
      found[point.name].append(point)
  return found


def load_entry_point(name: str) -> type[Combinator]:
  """Imports the class that an installed package declares under a name of `installed`.

  Raises:
    ValueError: packages declare different classes under it, or the class cannot be imported.
  """
  points = installed()[name]
  packages = " and ".join(sorted({_package(point) for point in points}))
  if len({point.value for point in points}) > 1:
    raise ValueError(
      f"the combinator name {name!r} is declared by {packages}; uninstall one of them, or choose "
      f"one by its class: {' or '.join(point.value for point in points)}"
    )
  try:
    return import_class(points[0].value.replace(" ", ""))
  except ValueError as error:
    raise ValueError(f"combinator {name!r} of the installed package {packages}: {error}") from error


def _package(point: importlib.metadata.EntryPoint) -> str:
  return f"{point.dist.name} {point.dist.version}" if point.dist else "of unknown name"


def settings(cls: type[Combinator]) -> dict[str, Any]:
  """Returns the options of a class that a config can hold, with their defaults.

  These are flags, numbers, texts and tuples of them. Other options keep their defaults.
  """
  found = {}
  for key, parameter in inspect.signature(cls).parameters.items():
    if key not in SIZES and _is_settable(parameter.default):
      as_float = parameter.annotation is float and type(parameter.default) is int
      found[key] = float(parameter.default) if as_float else parameter.default
  return found


def _is_settable(value: Any) -> bool:
  values = value if isinstance(value, tuple) else (value,)
  return all(isinstance(one, _SETTABLE) for one in values)


def _one_line(error: BaseException) -> str:
  return " ".join(f"{type(error).__name__}: {error}".split())
