"""The direct depth read on NVIDIA GPUs from Hopper on, in Pallas (Mosaic GPU)."""

from resjax.kernels.depth_attention.mosaic_gpu import call
from resjax.kernels.depth_attention.mosaic_gpu.direct_backward import backward as backward
from resjax.kernels.depth_attention.mosaic_gpu.direct_forward import forward as forward
from resjax.kernels.depth_attention.operands import Operands, Read


def obstacle(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels cannot run, or None."""
  return call.width_obstacle(operands.like) or call.obstacle(read)
