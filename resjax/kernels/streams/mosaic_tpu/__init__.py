"""Reads of residual streams on TPUs, in Pallas (Mosaic).

A kernel runs once per tile of `TOKENS` tokens, of which it has all streams on the chip. Channels
lie on the lanes of registers. Coefficients arrive with tokens on the lanes, are computed like that,
and are turned to columns, a token per row, where they multiply channels.

| file | content |
|------|---------|
| plan.py | sizes, tiles, and steps within a tile |
| phi.py | φ on the chip |
| budget.py | what a kernel needs on the chip, and which of them have room |
| coefficients.py | coefficients of a tile, and their derivative |
| forward.py | the forward kernel |
| backward.py | the reverse pass, by one kernel or two |
| backward_fused.py | the one |
| backward_read.py, backward_write.py | the two |
| reverse_steps.py | steps that they share |
| obstacles.py | what the kernels cannot do |

from resjax.kernels.streams.mosaic_tpu import forward

results = forward.forward(read, operands)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
