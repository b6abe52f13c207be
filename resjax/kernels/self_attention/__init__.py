"""Causal self-attention over packed rows, through the best existing kernel of the platform.

from resjax.kernels.self_attention import causal_attention

out = causal_attention(q, k, v, segment_ids, layout=Layout())  # [B, T, H, C]
"""

from resjax.kernels.self_attention.api import (
  IMPLEMENTATIONS,
  cached_attention,
  causal_attention,
  prompt_attention,
)
from resjax.kernels.self_attention.operands import ALL_EARLIER, PLAIN, Scores, Window

__all__ = [
  "ALL_EARLIER",
  "IMPLEMENTATIONS",
  "PLAIN",
  "Scores",
  "Window",
  "cached_attention",
  "causal_attention",
  "prompt_attention",
]
