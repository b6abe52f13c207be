"""Depth attention on TPUs, in Pallas (Mosaic).

Tiles and chunks are explained in `resjax.kernels.mosaic_tpu`. A plan (X_plan.py) holds their sizes.

from resjax.kernels.depth_attention.mosaic_tpu import direct_forward

out, running, stats = direct_forward.forward(read, operands)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
