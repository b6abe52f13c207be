"""From a config to a trained model: the run, its step and loop, what is saved on the way.

from resjax.train import experiment, train

result = train(experiment.build(config))
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
