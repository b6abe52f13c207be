"""Combinators by name."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from flax import nnx

from resjax.base import ranges
from resjax.base.sharding import Layout
from resjax.combinators import outside, systems
from resjax.combinators.base import SIZES, Combinator

_MOST = 1 << 16  # of whole numbers: no option counts more than the values of a head

Class = TypeVar("Class", bound=type[Combinator])

# Classes by name; None: a system of resjax that nobody has asked for yet.
_REGISTRY: dict[str, type[Combinator] | None] = dict.fromkeys(systems.names())


def register(name: str) -> Callable[[Class], Class]:
  """Returns a class decorator that makes a combinator of your own known under a name.

    @combinators.register("halved")
    class Halved(combinators.Standard):
      ...

    combinators.build("halved", num_layers=12, d_model=768, rngs=nnx.Rngs(0))

  Args:
    name: a Python identifier that no other class has; a class that is defined again, as in a
      notebook, takes its own place.

  Raises:
    ValueError: the name is taken or no identifier, or what is decorated is not a `Combinator`.
  """

  def add(cls: Class) -> Class:
    if not (isinstance(name, str) and name.isidentifier()):
      raise ValueError(f"{name!r} cannot name a combinator; allowed: a Python identifier")
    outside.check_class(cls, name)
    known = _loaded(name) if name in _REGISTRY else None
    if known and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
      raise ValueError(
        f"the combinator name {name!r} belongs to {known.__module__}.{known.__qualname__}; "
        "choose another name"
      )
    _REGISTRY[name] = cls
    return cls

  return add


def load(name: str) -> type[Combinator]:
  """Returns the class of a name; for `module:Class` it imports the module, which runs its code.

  `get`, `build` and records of runs then know the class by this name. Give it names of your own
  alone, and none that was read from a file.

  Raises:
    ValueError: there is no such combinator, or it cannot be imported.
  """
  if name not in _REGISTRY and outside.is_import(name):
    cls, key = outside.import_class(name), outside.section(name)
    if key in names():
      raise ValueError(
        f"the class of {name!r} has the name of the combinator {key!r}, whose options lie in "
        f"config.model.residual.{key}; rename the class"
      )
    _REGISTRY[name] = cls
  return get(name)


def names(*, shipped: bool = False) -> tuple[str, ...]:
  """Returns the names of all combinators, without importing any of them.

  Args:
    shipped: whether to leave out the combinators that other packages declare or register.
  """
  return systems.names() if shipped else tuple(dict.fromkeys((*_REGISTRY, *outside.installed())))


def get(name: str) -> type[Combinator]:
  """Returns the class that is registered, or declared by an installed package, under a name.

  The module of a name `module:Class` is not imported: the name may come from somebody's file.

  Raises:
    ValueError: there is no such combinator, or its package cannot be imported.
  """
  if name in _REGISTRY:
    return _loaded(name)
  if outside.is_import(name):
    raise ValueError(
      f"{name!r} names code, which is not imported because a file names it; if you trust it, give "
      f"--import={name}, or call resjax.combinators.load({name!r}) in Python"
    )
  if name not in outside.installed():
    near = difflib.get_close_matches(name, names(), 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(
      f"{name!r} is not a combinator; {hint}registered: {', '.join(names())}; one of your own is "
      "named module:Class"
    )
  cls = outside.load_entry_point(name)
  _REGISTRY.setdefault(name, cls)  # its module may have registered it
  return _loaded(name)


def _loaded(name: str) -> type[Combinator]:
  known = _REGISTRY[name] or systems.load(name)
  _REGISTRY[name] = known
  return known


def settings(name: str) -> dict[str, Any]:
  """Returns the options of a combinator that a config can hold, with their defaults.

  It is for the user's own config, as it imports the class (see `load`).

  Raises:
    ValueError: there is no such combinator, or it cannot be imported.
  """
  return outside.settings(load(name))


def check_section(key: str) -> None:
  """Raises ValueError unless config.model.residual.KEY holds the options of a combinator here."""
  known = [*map(outside.section, names())]
  if key not in known:
    hint = ranges.hint(key, ["name", *known], "no such combinator is registered")
    raise ValueError(f"config.model.residual.{key} is not a setting; {hint}")


def options(name: str) -> dict[str, Any]:
  """Returns the options of a combinator with their defaults, without `base.SIZES`."""
  parameters = inspect.signature(get(name)).parameters
  return {key: p.default for key, p in parameters.items() if key not in SIZES}


def build(
  name: str,
  /,
  *,
  num_layers: int,
  d_model: int,
  sites: tuple[str, ...] = ("attention", "mlp"),
  layout: Layout | None = None,
  rngs: nnx.Rngs,
  scaled_init: bool = False,
  **kwargs: Any,
) -> Combinator:
  """Returns a fresh combinator.

  Args:
    name: one of `names()`.
    num_layers: L.
    d_model: D.
    sites: the names of the sites of a layer, in order.
    layout: mesh and sharding rules, for combinators that run kernels; the default is one device.
    rngs: the source of initial values, for combinators that draw any.
    scaled_init: see `Combinator.scaled_init`.
    **kwargs: the combinator's own options, see `options(name)`.

  Raises:
    ValueError: the name or an option is unknown, or an option has another type or is out of range.
  """
  cls: Any = get(name)
  for key in kwargs:
    if key not in options(name):
      near = difflib.get_close_matches(key, options(name), 1)
      hint = f"did you mean {near[0]!r}? " if near else ""
      allowed = ", ".join(options(name)) or "none"
      raise ValueError(f"{key!r} is not an option of combinator {name!r}; {hint}allowed: {allowed}")
    if isinstance(kwargs[key], int) and abs(kwargs[key]) > _MOST:
      raise ValueError(f"{key}={kwargs[key]} is out of range; allowed: {-_MOST}..{_MOST}")
  kwargs = _as_annotated(cls, kwargs)
  sizes = {"num_layers": num_layers, "d_model": d_model, "sites": sites, "layout": layout}
  try:
    made = cls(**sizes, rngs=rngs, **kwargs)
  except (TypeError, OverflowError):
    _check_types(cls, kwargs)
    raise
  _check_types(cls, kwargs)  # a class knows its ranges better, so that its own checks come first
  made.scaled_init = scaled_init
  return made


def _as_annotated(cls: type[Combinator], kwargs: dict[str, Any]) -> dict[str, Any]:
  """Returns options, converted by `ranges.plain` where they do not have the annotated type."""
  annotations = inspect.signature(cls).parameters
  kinds = {key: annotations[key].annotation for key in kwargs}
  return {
    key: ranges.plain(value, kinds[key]) if ranges.wrong(value, kinds[key], _MOST) else value
    for key, value in kwargs.items()
  }


def _check_types(cls: type[Combinator], kwargs: dict[str, Any]) -> None:
  annotations = inspect.signature(cls).parameters
  for key, value in kwargs.items():
    ranges.check_type(value, annotations[key].annotation, key)
