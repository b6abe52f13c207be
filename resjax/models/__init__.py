"""The decoder, its layers and how depth is run; the residual stream for other models.

from resjax.models import Decoder, DecoderConfig, ResidualStream, generate
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
