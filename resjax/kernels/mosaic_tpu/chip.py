"""What kernels have to know of the TPU that they run on."""

from resjax.base.hardware import find_tpu
from resjax.base.sharding import Layout

SUBLANES = 8  # rows of a register of 32-bit numbers
ROWS = 16  # rows of a register of 16-bit numbers


def chip_of(layout: Layout) -> str:
  """Returns the key of `TPU_CHIPS` for the devices of a mesh; `v5e` if it is no known TPU."""
  return find_tpu(layout.device.device_kind) or "v5e"
