"""Depth attention: every token attends over the outputs of earlier layers at its own position.

A *source* is one array [B, T, D] that a layer may read: the embedding, or a sum of layer outputs. A
*read* has a query [D] and N sources v_n. For every token by itself it computes

  s_n = query · RMS(v_n),  p = softmax_n(s),  h = Σ_n p_n v_n.

There are two ways to compute the reads of a *depth block*, S sublayers whose outputs are summed
into one new source, the *running sum*:

- A *direct read* at every sublayer goes over all sources (`depth_attention`).
- *Two phases*: when a depth block opens, phase 1 (`depth_attention_block`) computes all its S reads
  from the sources that are complete by then, each of which is loaded once. At every sublayer, phase
  2 (`depth_attention_merge`) merges one of these results with the running sum, the only source that
  has changed since; where sublayers change no source it takes one as it is (`depth_attention_row`).
  `two_phase_moves_less` says when this moves fewer bytes.

Sums of sources with given weights, without a softmax, are `depth_sum` and `gated_depth_sum`.

  from resjax.kernels.depth_attention import depth_attention

  h = depth_attention([embedding, first_output, second_output], query)  # [B, T, D]

| file | content |
|------|---------|
| api.py, two_phase.py | the public functions, their equations, and their derivatives (custom_vjp) |
| weighted_sum.py | `depth_sum` and `gated_depth_sum`, in plain JAX |
| sources.py | `Sources`, how a caller keeps its sources |
| operands.py | the tuples of arrays that all implementations take and return |
| operation.py | `DIRECT`, `BLOCK` and `MERGE`: how their arrays are split over devices |
| bf16_remainder.py | bits of an output beyond bfloat16, which a merge keeps for its reverse pass |
| reference/ | the three operations direct, block (phase 1) and merge (phase 2) in plain JAX |
| mosaic_tpu/ | the same as Pallas kernels for TPUs |
| mosaic_gpu/ | the same as Pallas kernels for NVIDIA GPUs from Hopper on |

The folders of kernels have for each operation a file X_forward.py and a file X_backward.py; plans
choose tile sizes, and obstacles.py says why a read is not supported.

Words used in all of them:

- *bank*: an array [N_max, ..., D] of sources whose first `num_valid` slots are filled. A scan over
  layers needs it, because its arrays must have fixed shapes.
- *recent*: sources that are arrays of their own, newer than those in the bank.
- *slot*: a place for a source: first all slots of the bank, filled or not, then the recent ones. A
  slot *counts* if it holds a source that the read attends to.
- *operands*: the arrays that an operation takes (operands.py); a *cotangent* d_x is the gradient of
  the loss with respect to x.
- *threaded*: said of sources that a read returns unchanged, so that the next read takes them from
  it. In the reverse pass their cotangents then arrive already summed over all later reads, and each
  read adds its own in place.
- *addend*: an array that is added to the newest source before it is read: the residual add.
- *lse*: log Σ_n exp(s_n), which is all that phase 2 needs of the logits of phase 1.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
