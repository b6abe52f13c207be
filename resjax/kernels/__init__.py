"""Fused operations behind one API each, and plain JAX that does the same.

| package | operation |
|---------|-----------|
| depth_attention | attention of a token over earlier layers at its position, and weighted sums |
| streams | a read of R residual streams, which also applies the write before it |
| gated_streams | a read of R residual streams through gates of low rank |
| self_attention | causal attention over packed rows, by existing kernels |
| mosaic_tpu, mosaic_gpu | what the kernels for TPUs share, and those for NVIDIA GPUs |

operation.py chooses which implementation of an operation runs, runs it, and says why one cannot. No
package imports the inside of another one; each is used through its own door:

from resjax.kernels import sum_of_products
from resjax.kernels.depth_attention import depth_attention

h = depth_attention([embedding, first_output], query)  # [B, T, D]
mean = sum_of_products(jnp.full((2, 1, 1, 1), 0.5), jnp.stack([embedding, h]))
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
