"""The merge of two-phase depth attention on NVIDIA GPUs from Hopper on, in Pallas (Mosaic GPU)."""

from resjax.kernels.depth_attention.mosaic_gpu import call
from resjax.kernels.depth_attention.mosaic_gpu.merge_backward import backward as backward
from resjax.kernels.depth_attention.mosaic_gpu.merge_forward import forward as forward
from resjax.kernels.depth_attention.operands import Read
from resjax.kernels.depth_attention.two_phase_operands import MergeOperands


def obstacle(read: Read, operands: MergeOperands) -> str | None:
  """Returns why the kernels cannot run, or None."""
  return call.width_obstacle(operands.like) or call.obstacle(read)
