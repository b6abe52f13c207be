"""What the kernels for NVIDIA GPUs cannot do; each function is named after an operation."""

from resjax.kernels.depth_attention.mosaic_gpu import two_phase_tiles
from resjax.kernels.depth_attention.mosaic_gpu.pairs import MAX_SOURCES
from resjax.kernels.depth_attention.operands import MergeOperands, Operands, Read

_HOPPER = 9.0
_MAX_WIDTH = 8192  # of rows that are held in registers: a thread has its share of up to four rows


def direct(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels of the direct read cannot run, or None."""
  return _width_obstacle(operands) or _device_obstacle(read)


def block(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels of phase 1 cannot run, or None."""
  like, slots, reads = operands.like, operands.num_slots, len(operands.query)
  if slots > MAX_SOURCES:
    return f"there are {slots} sources, it takes up to {MAX_SOURCES}"
  tiles = (
    two_phase_tiles.choose_forward(like, slots, reads),
    two_phase_tiles.choose_backward(like, slots, reads, read.threaded),
  )
  if None in tiles:
    return (
      f"a token of {slots} sources and {reads} reads of width {like.shape[-1]} does not fit into "
      "shared memory"
    )
  return _device_obstacle(read)


def merge(read: Read, operands: MergeOperands) -> str | None:
  """Returns why the kernels of the merge cannot run, or None."""
  return _width_obstacle(operands) or _device_obstacle(read)


def _width_obstacle(operands: Operands | MergeOperands) -> str | None:
  """Returns why a kernel that holds rows in registers cannot run, or None."""
  width = operands.like.shape[-1]
  if width > _MAX_WIDTH:
    return f"the width {width} (config.model.d_model) is above {_MAX_WIDTH}, what registers hold"
  return None


def _device_obstacle(read: Read) -> str | None:
  """Returns why no kernel can run on the GPU of a read, or None."""
  if read.interpret:
    return None
  found = read.layout.device
  capability = getattr(found, "compute_capability", None)
  if capability is None:
    return f"the compute capability of {found.device_kind!r} is not known, it needs {_HOPPER}"
  if float(capability) < _HOPPER:
    return f"{found.device_kind!r} has compute capability {capability}, it needs {_HOPPER}"
  return None
