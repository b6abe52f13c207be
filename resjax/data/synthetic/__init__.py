"""Synthetic tasks: documents and the answers to them, made from a seed.

from resjax.data.synthetic import Task, by_level
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
