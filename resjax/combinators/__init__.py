"""Residual combinators: what a sublayer reads from the depth state, and how it writes to it.

from flax import nnx
from resjax import combinators

combinator = combinators.build("mhc", num_layers=12, d_model=768, rngs=nnx.Rngs(0))
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
