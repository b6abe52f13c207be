"""Depth attention in plain JAX: the definition that the kernels are tested against.

from resjax.kernels.depth_attention.reference import direct

out, running, stats = direct.forward(read, operands)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
