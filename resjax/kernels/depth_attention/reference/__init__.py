"""Depth attention in plain JAX: the definition that the kernels are tested against.

out, running, stats = direct.forward(read, operands)
cotangents = direct.backward(read, operands, stats, d_out, d_sources)
"""

from resjax.kernels.depth_attention.reference import block as block
from resjax.kernels.depth_attention.reference import direct as direct
from resjax.kernels.depth_attention.reference import merge as merge
