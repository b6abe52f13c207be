"""Gated reads of residual streams on NVIDIA GPUs from Hopper on, in Pallas (Mosaic GPU).

The kernels work on one token at a time, with rows and rings of `resjax.kernels.mosaic_gpu`. The
weights of a read have no room on the chip, so XLA takes the products with them, between two kernels
(products.py). Arrays that it multiplies are [T, R, D], all streams of a token one behind another,
so that a product is one of matrices [T, R D]. The last kernel adds what flows back through the
state. In passes over [T, D], dx counting once where it is loaded for every stream:

| pass | what runs | passes |
|------|-----------|--------|
| forward | normalise; project; open gates; mix | 6 R + 1 |
| reverse | open gates; unmix; four products; unnormalise | 14 R + 2 |

from resjax.kernels.gated_streams.mosaic_gpu import forward

results = forward.forward(read, operands)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
