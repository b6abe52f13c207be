"""The optimizer: its settings, its learning rate, and how it treats each parameter.

from resjax.train.optim import OptimizerConfig, make_optimizer

optimizer = make_optimizer(OptimizerConfig(peak=1e-3), steps=1000)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
