"""What is learned from models: analyses, scores, sweeps, and the statistics of comparisons.

from resjax.study import analysis, evaluation, statistics, sweeps
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
