"""Chips, slices and nodes: peaks, memory, and compiler options.

from resjax.base.hardware import TPU_CHIPS, find_tpu

TPU_CHIPS[find_tpu("TPU v5")].peak_flops
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
