"""The direct depth read on NVIDIA GPUs from Hopper on, in Pallas (Mosaic GPU)."""

from resjax.kernels.depth_attention.mosaic_gpu import call
from resjax.kernels.depth_attention.mosaic_gpu.direct_backward import backward as backward
from resjax.kernels.depth_attention.mosaic_gpu.direct_forward import forward as forward
from resjax.kernels.depth_attention.operands import Operands, Read

PLATFORM = "gpu"
# A thread holds its share of up to four rows in registers.
MAX_WIDTH = 8192


def obstacle(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels cannot run, or None."""
  width = operands.like.shape[-1]
  if width > MAX_WIDTH:
    return f"the width {width} (config.model.d_model) is above {MAX_WIDTH}, what registers hold"
  return call.obstacle(read)
