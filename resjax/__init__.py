"""resjax: how should information travel along the depth of a Transformer?

  from resjax import Experiment

  Experiment("tiny", {"model.residual.name": "attn_res"}).train()

Each room is imported when it is asked for; those of the trainer need the extra `train`.
"""

import sys

import lazy_loader

from resjax.base import Finder

if Finder not in sys.meta_path:
  sys.meta_path.insert(0, Finder)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
