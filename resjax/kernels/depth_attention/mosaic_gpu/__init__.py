"""Depth attention on NVIDIA GPUs from Hopper on, in Pallas (Mosaic GPU).

Programs, rings and rows are explained in `resjax.kernels.mosaic_gpu`. The sources of a token are
the rows of a ring, over which a kernel goes once or several times (source_walk.py).

from resjax.kernels.depth_attention.mosaic_gpu import direct_forward

out, running, stats = direct_forward.forward(read, operands)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
