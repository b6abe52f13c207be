"""Residual streams: one pass that applies a write and reads for the next branch.

A token has R *streams* H_r [D]. A *site* reads x = Σ_r p_r H_r, a branch computes o from it, and
the site writes H_r ← Σ_s M_rs H_s + b_r o. The coefficients p, M and b are functions of the streams
that the site reads. The write waits until the next read (`Pending`), so that one pass over the
streams, `stream_read`, does both: it loads R streams and o, and stores R streams and x.

  from resjax.kernels.streams import Pending, stream_read

  x, streams, weights = stream_read(pending, phi, parameters, coefficients)
  pending = Pending(streams, weights, branch(x))

| file | content |
|------|---------|
| api.py | `stream_read`, its equations and its derivative (custom_vjp) |
| operands.py | the tuples of arrays that all implementations take and return |
| operation.py | the choice of an implementation, and how arrays are split over devices |
| doubly_stochastic.py | doubly stochastic matrices, with a derivative of their own |
| reference.py | both passes in plain JAX |
| mosaic_tpu/ | the same as Pallas kernels for TPUs |
| mosaic_gpu/ | the same as Pallas kernels for NVIDIA GPUs, with products in XLA between them |

Arrays of coefficients have their token axes last, so that tokens lie on the lanes of registers.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
