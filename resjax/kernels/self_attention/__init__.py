"""Causal self-attention over packed rows, through the best existing kernel of the platform."""

from resjax.kernels.self_attention.api import IMPLEMENTATIONS, causal_attention, masked_attention

__all__ = ["IMPLEMENTATIONS", "causal_attention", "masked_attention"]
