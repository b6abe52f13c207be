"""What kernels for NVIDIA GPUs from Hopper on share, in Pallas (Mosaic GPU); no operation's own.

A kernel is launched as many *programs* as run at a time. A program is one warpgroup, 128 threads,
and works on one token at a time, on every P-th one if there are P programs. The rows of its tokens
pass through *rings* in shared memory (ring.py), filled by asynchronous copies that run ahead. A row
is D channels in the registers of the program (row_ops.py):

  def kernel(refs: call.Refs) -> None:
    ring = call.make_ring(refs.rings[0], call.stream_rows(refs.inputs), tokens)

    def one(step: Array, _: None) -> None:
      ring.wait(step, 0)
      row_ops.store(refs.outputs.at[ring.token(step)], ring.load(step, 0))
      ring.release(step, range(1))

    lax.fori_loop(jnp.int32(0), ring.steps, one, None)
"""

from resjax.kernels.mosaic_gpu import call as call
from resjax.kernels.mosaic_gpu import row_ops as row_ops
from resjax.kernels.mosaic_gpu import tiles as tiles
from resjax.kernels.mosaic_gpu.ring import Ring as Ring
from resjax.kernels.mosaic_gpu.ring import Stream as Stream
from resjax.kernels.mosaic_gpu.ring import when as when
from resjax.kernels.mosaic_gpu.row_ops import WARPS as WARPS
from resjax.kernels.mosaic_gpu.row_ops import ChannelSums as ChannelSums
from resjax.kernels.mosaic_gpu.row_ops import Row as Row
from resjax.kernels.mosaic_gpu.tiles import MAX_ROWS as MAX_ROWS
from resjax.kernels.mosaic_gpu.tiles import GpuTiles as GpuTiles
from resjax.kernels.mosaic_gpu.tiles import choose_tiles as choose_tiles
from resjax.kernels.mosaic_gpu.tiles import room_of as room_of
