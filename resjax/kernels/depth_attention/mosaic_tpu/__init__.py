"""Depth attention on TPUs, in Pallas (Mosaic).

Tiles and chunks are explained in `resjax.kernels.mosaic_tpu`. A plan (X_plan.py) holds their sizes.

  kernel = DIRECT.load("mosaic_tpu", "forward")  # the module direct_forward
  out, running, stats = kernel.forward(read, operands)
"""

from resjax.kernels.depth_attention.mosaic_tpu import block_backward as block_backward
from resjax.kernels.depth_attention.mosaic_tpu import block_forward as block_forward
from resjax.kernels.depth_attention.mosaic_tpu import direct_backward as direct_backward
from resjax.kernels.depth_attention.mosaic_tpu import direct_forward as direct_forward
from resjax.kernels.depth_attention.mosaic_tpu import merge_backward as merge_backward
from resjax.kernels.depth_attention.mosaic_tpu import merge_forward as merge_forward
from resjax.kernels.depth_attention.mosaic_tpu import obstacles as obstacles
