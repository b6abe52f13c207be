"""Says which extra of resjax has a package that a module needs and that is not installed.

The base install runs combinators and decoders alone. Any other module of resjax that is imported
there fails with one line: the module, the package, and what to install.
"""

import importlib
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

_OF_OTHER_EXTRAS = {
  "lm_eval": "eval", "jinja2": "eval", "gguf": "gguf", "huggingface_hub": "hub"
}  # fmt: skip


def missing(what: str, package: str) -> str:
  """Returns the message that a module or command needs a package, and how to install it."""
  extra = _OF_OTHER_EXTRAS.get(package, "train")
  return f"{what} needs {package}, which is not installed; pip install 'resjax[{extra}]'"


def chosen(package: str, extra: str, setting: str) -> ModuleType:
  """Returns the package that a setting asks for.

  Args:
    package: the name of its module.
    extra: the extra of resjax that has the package.
    setting: the setting, for the message.

  Raises:
    ValueError: the package is not installed.
  """
  try:
    return importlib.import_module(package)
  except ModuleNotFoundError as error:
    if error.name != package:
      raise
    raise ValueError(f"{setting} needs {package}: pip install 'resjax[{extra}]'") from None


class Finder:
  """Finds the modules of resjax in their folder, as Python does, and loads them by `_Loader`."""

  @staticmethod
  def find_spec(
    name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
  ) -> ModuleSpec | None:
    """Returns how to load a module of resjax; None: it is none, or is not here."""
    if not name.startswith("resjax."):
      return None
    spec = PathFinder.find_spec(name, path, target)
    if spec is not None and type(spec.loader) is SourceFileLoader:
      spec.loader = _Loader(spec.loader.name, spec.loader.path)
    return spec


class _Loader(SourceFileLoader):
  def exec_module(self, module: ModuleType) -> None:
    try:
      super().exec_module(module)
    except ModuleNotFoundError as error:
      package = (error.name or "").partition(".")[0]
      if package in ("", "resjax"):
        raise
      # Each module that imports another one says so anew: the last one is that of the caller.
      raise ModuleNotFoundError(missing(module.__name__, package), name=error.name) from None
