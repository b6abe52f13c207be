"""Reads of residual streams on NVIDIA GPUs from Hopper on, in Pallas (Mosaic GPU).

The kernels work on one token at a time, with rows and rings of `resjax.kernels.mosaic_gpu`. φ has
R D rows, too many to be read for every token, and a tile of tokens with all its streams has no room
on the chip. So XLA takes the products with φ, between two kernels (products.py). In passes over
[T, D]:

| pass | what runs | with φ | without |
|------|-----------|--------|---------|
| forward | write; products; mix and norm | 4 R + 2 | 2 R + 2 |
| reverse | unmix; products of φ and with φ; unwrite | 8 R + 5 | 4 R + 5 |

from resjax.kernels.streams.mosaic_gpu import forward

results = forward.forward(read, operands)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
