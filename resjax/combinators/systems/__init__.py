"""The residual systems: each is the class in the file of its name.

from resjax.combinators.systems import load

load("standard")
"""

import importlib
import inspect
import pkgutil

from resjax.combinators.base import Combinator

__all__ = ["load", "names"]


def names() -> tuple[str, ...]:
  """Returns the names of all systems, `standard` first; nothing is imported for it."""
  found = [module.name for module in pkgutil.iter_modules(__path__)]
  return tuple(sorted(found, key=lambda name: (name != "standard", name)))


def load(name: str) -> type[Combinator]:
  """Returns the class of a system: that of its name without underscores, whatever is upper case.

  Raises:
    ValueError: its file has no such class.
  """
  module, wanted = importlib.import_module(f"{__name__}.{name}"), name.replace("_", "")
  for key, cls in inspect.getmembers(module, inspect.isclass):
    if key.lower() == wanted and issubclass(cls, Combinator):
      return cls
  raise ValueError(f"{module.__file__} has no class {wanted!r}; upper and lower case do not matter")
