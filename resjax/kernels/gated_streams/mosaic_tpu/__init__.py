"""Gated reads of residual streams on TPUs, in Pallas (Mosaic).

A kernel runs once per tile of `TOKENS` tokens, of which it has all streams on the chip, beside the
weights of the site; the reverse kernel has their float32 gradients there as well. Channels lie on
the lanes of registers, in all weights too: W_down is turned, W_inject continues its rows.

  kernel = READ.load("mosaic_tpu", "forward")  # the module of this name
  results = kernel.forward(read, operands)
"""

from resjax.kernels.gated_streams.mosaic_tpu import backward as backward
from resjax.kernels.gated_streams.mosaic_tpu import forward as forward
from resjax.kernels.gated_streams.mosaic_tpu import obstacles as obstacles
