"""Gated reads of residual streams on TPUs, in Pallas (Mosaic).

A kernel runs once per tile of `TOKENS` tokens, of which it has all streams on the chip, beside the
weights of the site; the reverse kernel has their float32 gradients there as well. Channels lie on
the lanes of registers, in all weights too: W_down is turned, W_inject continues its rows.

from resjax.kernels.gated_streams.mosaic_tpu import forward

results = forward.forward(read, operands)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
