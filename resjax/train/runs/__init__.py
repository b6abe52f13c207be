"""A run and its folder: settings, records, history, and the models that it saved.

from resjax.train.runs import restore

saved = restore.find("runs/tiny", "--run")
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
