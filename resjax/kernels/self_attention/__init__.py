"""Causal self-attention over packed rows, through the best existing kernel of the platform.

from resjax.kernels.self_attention import causal_attention

out = causal_attention(q, k, v, segment_ids, layout=Layout())  # [B, T, H, C]
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
