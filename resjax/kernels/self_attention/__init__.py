"""Causal self-attention over packed rows, through the best existing kernel of the platform."""

from resjax.kernels.self_attention.api import IMPLEMENTATIONS, causal_attention, masked_attention
from resjax.kernels.self_attention.scores import ALL_EARLIER, PLAIN, Scores, Window

__all__ = [
  "ALL_EARLIER",
  "IMPLEMENTATIONS",
  "PLAIN",
  "Scores",
  "Window",
  "causal_attention",
  "masked_attention",
]
