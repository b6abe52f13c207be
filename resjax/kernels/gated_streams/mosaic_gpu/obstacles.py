"""What the kernels for NVIDIA GPUs cannot do."""

from resjax.kernels.gated_streams.mosaic_gpu import plan
from resjax.kernels.gated_streams.operands import Operands, Read
from resjax.kernels.mosaic_gpu import call, room_of


def obstacle(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels cannot run, or None."""
  count, width = len(operands.streams), operands.like.shape[-1]
  if count > plan.MAX_STREAMS:
    return f"there are {count} streams, it takes up to {plan.MAX_STREAMS}"
  chosen = plan.mix_tiles, plan.unmix_tiles, plan.unnormalise_tiles
  if any(choose(read, operands) is None for choose in chosen):
    return (
      f"a token of {count} streams of width {width} and the sums of its gains' cotangents do not "
      f"fit into shared memory, {room_of(read)} bytes of a multiprocessor"
    )
  return call.device_obstacle(read)
