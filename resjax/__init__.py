"""resjax: how should information travel along the depth of a Transformer?"""

import importlib
from typing import TYPE_CHECKING, Any

from resjax._version import __version__ as __version__

if TYPE_CHECKING:
  from resjax.actions.experiment import Experiment as Experiment
  from resjax.actions.experiment import Pretrained as Pretrained

__all__ = ["Experiment", "Pretrained", "__version__"]


def __getattr__(name: str) -> Any:
  if name not in ("Experiment", "Pretrained"):
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  # They need the trainer, which takes seconds to import and packages of its own.
  try:
    return getattr(importlib.import_module("resjax.actions.experiment"), name)
  except ModuleNotFoundError as error:
    raise ImportError(
      f"resjax.{name} needs {error.name}, which is not installed; pip install 'resjax[train]'"
    ) from error


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
