"""What the kernels for NVIDIA GPUs cannot do."""

from resjax.kernels.depth_attention.mosaic_gpu.call import device_obstacle
from resjax.kernels.depth_attention.mosaic_gpu.tiles import room_of
from resjax.kernels.gated_streams.mosaic_gpu import sizes
from resjax.kernels.gated_streams.operands import Operands, Read


def obstacle(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels cannot run, or None."""
  count, width = len(operands.streams), operands.like.shape[-1]
  if count > sizes.MAX_STREAMS:
    return f"there are {count} streams, it takes up to {sizes.MAX_STREAMS}"
  chosen = sizes.mix_tiles, sizes.unmix_tiles, sizes.unnormalise_tiles
  if any(choose(read, operands) is None for choose in chosen):
    return (
      f"a token of {count} streams of width {width} and the sums of its gains' cotangents do not "
      f"fit into shared memory, {room_of(read)} bytes of a multiprocessor"
    )
  return device_obstacle(read)
