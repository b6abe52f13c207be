"""Depth attention on NVIDIA GPUs from Hopper on, in Pallas (Mosaic GPU).

Programs, rings and rows are explained in `resjax.kernels.mosaic_gpu`. The sources of a token are
the rows of a ring, over which a kernel goes once or several times (source_walk.py).

  kernel = DIRECT.load("mosaic_gpu", "forward")  # the module direct_forward
  out, running, stats = kernel.forward(read, operands)
"""

from resjax.kernels.depth_attention.mosaic_gpu import block_backward as block_backward
from resjax.kernels.depth_attention.mosaic_gpu import block_forward as block_forward
from resjax.kernels.depth_attention.mosaic_gpu import direct_backward as direct_backward
from resjax.kernels.depth_attention.mosaic_gpu import direct_forward as direct_forward
from resjax.kernels.depth_attention.mosaic_gpu import merge_backward as merge_backward
from resjax.kernels.depth_attention.mosaic_gpu import merge_forward as merge_forward
from resjax.kernels.depth_attention.mosaic_gpu import obstacles as obstacles
