"""resjax: how should information travel along the depth of a Transformer?"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from resjax.base.extras import Finder
from resjax.base.version import __version__ as __version__

if TYPE_CHECKING:
  from resjax.cli.actions.experiment import Experiment as Experiment
  from resjax.cli.actions.experiment import Pretrained as Pretrained

if Finder not in sys.meta_path:
  sys.meta_path.insert(0, Finder)

__all__ = ["Experiment", "Pretrained", "__version__"]


def __getattr__(name: str) -> Any:
  if name not in ("Experiment", "Pretrained"):
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  # They need the trainer, which takes seconds to import and packages of its own.
  return getattr(importlib.import_module("resjax.cli.actions.experiment"), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
