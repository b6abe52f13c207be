"""What kernels for NVIDIA GPUs from Hopper on share, in Pallas (Mosaic GPU); no operation's own.

A kernel is launched as many *programs* as run at a time. A program is one warpgroup, 128 threads,
and works on one token at a time, on every P-th one if there are P programs. The rows of its tokens
pass through *rings* in shared memory (ring.py), filled by asynchronous copies that run ahead. A row
is D channels in the registers of the program (row_ops.py).

from resjax.kernels.mosaic_gpu import call, row_ops

def kernel(refs: call.Refs) -> None:
  ring = call.make_ring(refs.rings[0], call.stream_rows(refs.inputs), tokens)

  def one(step: Array, _: None) -> None:
    ring.wait(step, 0)
    row_ops.store(refs.outputs.at[ring.token(step)], ring.load(step, 0))
    ring.release(step, range(1))

  lax.fori_loop(jnp.int32(0), ring.steps, one, None)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
