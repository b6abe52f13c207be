"""What commands and Python do with runs and models: train, score, sample, analyse.

from resjax.cli.actions import Pretrained

Pretrained("runs/tiny").generate("import os")
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
