"""Which systems can learn to pick one source of depth, and how far away it may be.

from resjax.study.analysis.depth_retrieval import Setup, every_system, training

training.accuracies(every_system()[0], 8, tasks, seeds=[0, 1], setup=Setup())
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
