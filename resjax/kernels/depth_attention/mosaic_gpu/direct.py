"""The direct depth read on NVIDIA GPUs from Hopper on, in Pallas (Mosaic GPU)."""

from resjax.kernels.depth_attention.mosaic_gpu import call
from resjax.kernels.depth_attention.mosaic_gpu.direct_backward import backward as backward
from resjax.kernels.depth_attention.mosaic_gpu.direct_forward import forward as forward
from resjax.kernels.depth_attention.operands import Operands, Read

PLATFORM = "gpu"
HOPPER = 9.0
# A thread holds its share of up to four rows in registers.
MAX_WIDTH = 8192


def obstacle(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels cannot run, or None."""
  width = operands.like.shape[-1]
  if width > MAX_WIDTH:
    return f"the width {width} (config.model.d_model) is above {MAX_WIDTH}, what registers hold"
  if read.interpret:
    return None
  device = call.device(read.layout)
  capability = getattr(device, "compute_capability", None)
  if capability is None:
    return f"the compute capability of {device.device_kind!r} is not known, it needs {HOPPER}"
  if float(capability) < HOPPER:
    return f"{device.device_kind!r} has compute capability {capability}, it needs {HOPPER}"
  return None
