"""The gated read as an operation.

Its forward pass returns x [..., D]; the logits [R, ...] float32, or None; and z [..., at least r]
float32, which the reverse pass takes. That one is called as backward(read, operands, z, d_x,
d_logits, d_streams) with the cotangents of x [..., D], of the logits [R, ...] and of the streams
that were handed on [R, ..., D], the last two None where nothing is written after the read. It
returns the cotangents of the operands. JAX differentiates the reference by itself.
"""

from resjax.kernels.gated_streams.operands import Operands, Read
from resjax.kernels.operation import FIRST, NO_TOKENS, SECOND, Axes, Operation


def _axes(read: Read, operands: Operands) -> Axes:
  del read
  written = operands.inject is not None
  second, inject = (SECOND, NO_TOKENS) if written else (None, None)
  axes = Operands(SECOND, NO_TOKENS, NO_TOKENS, NO_TOKENS, inject)
  return Axes(axes, (FIRST, second, FIRST), (FIRST, FIRST, second, second), axes)


READ = Operation("gated reads of residual streams", __package__, _axes)
