"""The residual systems, one class each.

from resjax.combinators.systems import Standard
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
