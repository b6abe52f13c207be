"""Several runs and the conclusions from them: plans, results, tables, pages.

from resjax.study.sweeps import expand

runs = expand(config, [("slow", {"optim.peak": 1e-4})], seeds=[0, 1, 2])
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
