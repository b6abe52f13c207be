"""What users call: the experiment in Python, and where shipped configs and commands lie.

from resjax.cli import Experiment

Experiment("tiny", {"train.steps": 100}).train()
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
