"""Saved states of a run: whole or not there, checked when they are read.

from resjax.train.checkpoint import newest

newest(workdir / "checkpoints")
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
