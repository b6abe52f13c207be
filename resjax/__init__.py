"""resjax: how should information travel along the depth of a Transformer?

  from resjax import Experiment

  Experiment("tiny", {"model.residual.name": "attn_res"}).train()

Each room is imported when it is asked for; the trainer's rooms need the extra `train`.
"""

import sys
from importlib.machinery import PathFinder

import lazy_loader

from resjax.base import Finder

if Finder not in sys.meta_path:  # behind import hooks of others, such as type checkers
  sys.meta_path.insert(sys.meta_path.index(PathFinder), Finder)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
