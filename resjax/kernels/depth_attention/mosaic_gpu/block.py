"""Phase 1 of two-phase depth attention on NVIDIA GPUs from Hopper on, in Pallas (Mosaic GPU)."""

from resjax.kernels.depth_attention.mosaic_gpu import call, two_phase_tiles
from resjax.kernels.depth_attention.mosaic_gpu.block_backward import backward as backward
from resjax.kernels.depth_attention.mosaic_gpu.block_forward import forward as forward
from resjax.kernels.depth_attention.mosaic_gpu.pairs import MAX_SOURCES
from resjax.kernels.depth_attention.operands import Operands, Read


def obstacle(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels cannot run, or None."""
  like, slots, reads = operands.like, operands.num_slots, len(operands.query)
  if slots > MAX_SOURCES:
    return f"there are {slots} sources, it takes up to {MAX_SOURCES}"
  forward = two_phase_tiles.choose_forward(like, slots, reads)
  if forward is None or two_phase_tiles.choose_backward(like, slots, reads, read.threaded) is None:
    return (
      f"a token of {slots} sources and {reads} reads of width {like.shape[-1]} does not fit into "
      "shared memory"
    )
  return call.obstacle(read)
