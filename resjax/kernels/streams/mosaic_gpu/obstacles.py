"""What the kernels for NVIDIA GPUs cannot do."""

from resjax.kernels.mosaic_gpu import call, room_of
from resjax.kernels.streams.mosaic_gpu import plan
from resjax.kernels.streams.operands import Operands, Read

_MAX_WIDTH = 8192  # of the row that a program holds in registers


def obstacle(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels cannot run, or None."""
  count, width = len(operands.pending.streams), operands.like.shape[-1]
  if count > plan.MAX_STREAMS:
    return f"there are {count} streams, it takes up to {plan.MAX_STREAMS}"
  if width > _MAX_WIDTH:
    return f"the width {width} (config.model.d_model) is above {_MAX_WIDTH}, what registers hold"
  chosen = plan.write_tiles, plan.mix_tiles, plan.unmix_tiles, plan.unwrite_tiles
  if any(choose(read, operands) is None for choose in chosen):
    return (
      f"a token of {count} streams of width {width} does not fit into shared memory, "
      f"{room_of(read)} bytes of a multiprocessor"
    )
  return call.device_obstacle(read)
