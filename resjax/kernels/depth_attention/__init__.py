"""Depth attention: one read over the sources of a Transformer's depth."""

from resjax.kernels.depth_attention.api import depth_attention as depth_attention
from resjax.kernels.depth_attention.backends import IMPLEMENTATIONS as IMPLEMENTATIONS
from resjax.kernels.depth_attention.sources import Sources as Sources
from resjax.kernels.depth_attention.sources import make_bank as make_bank
from resjax.kernels.depth_attention.sources import store as store
from resjax.kernels.depth_attention.two_phase import BlockRead as BlockRead
from resjax.kernels.depth_attention.two_phase import depth_attention_block as depth_attention_block
from resjax.kernels.depth_attention.two_phase import depth_attention_merge as depth_attention_merge
from resjax.kernels.depth_attention.two_phase import has_block_kernel as has_block_kernel
from resjax.kernels.depth_attention.two_phase import two_phase_moves_less as two_phase_moves_less
from resjax.kernels.depth_attention.weighted_sum import depth_sum as depth_sum
from resjax.kernels.depth_attention.weighted_sum import gated_depth_sum as gated_depth_sum
