"""The commands of resjax, one module each: `resjax NAME` calls its `run`.

from resjax.cli.commands import train

train.run()
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
