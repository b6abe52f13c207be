"""Reads of residual streams through a gate per channel of low rank, which normalise them too.

A token has R streams H_s [D]. A read normalises each of them, computes gates from all of them in
two products of rank r, and mixes what they let through. In plain JAX every one of these steps
passes over R streams; a kernel loads a tile of tokens with all its streams once.

  from resjax.kernels.gated_streams import gated_read

  x, logits, streams = gated_read(streams, gain, down, up, inject)  # x: [B, T, D]

| file | content |
|------|---------|
| api.py | `gated_read`, its equations and its derivative (custom_vjp) |
| operands.py | the tuples of arrays that all implementations take and return |
| operation.py | how arrays are split over devices, and what both passes return |
| reference.py | the read in plain JAX, which JAX differentiates |
| mosaic_tpu/ | both passes as Pallas kernels for TPUs |
| mosaic_gpu/ | the same as Pallas kernels for NVIDIA GPUs, with products in XLA between them |
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
