"""Parts of layers: attention, MLP, norms, rotations, embeddings, the key-value cache.

from resjax.nn import MLP, Attention, Rope
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
