"""What the merge of two-phase depth attention takes, keeps and gives back; all its backends alike.

Phase 1 shares `Read`, `Operands`, `Stats` and `Cotangents` with a direct read, with a leading axis
S on query, logits, lse and the query's cotangent.
"""

from typing import NamedTuple

import jax.numpy as jnp

from resjax.typing import Array


class MergeOperands(NamedTuple):
  """The arrays of a merge.

  Attributes:
    out: [S, ..., D] of phase 1; None in a reverse pass, which does without.
    lse: [S, ...] of phase 1; None in a reverse pass.
    running: [..., D], the sum of the depth block so far; in a reverse pass the addend is in it.
    counts: int32 [2]: 1 if the running sum counts, else 0, and it may hold anything; and which
      of the S reads is merged.
    query: [D], the gain of the key norm multiplied in.
    addend: [..., D] or None.
    out_norm_scale: [D] or None.
  """

  out: Array | None
  lse: Array | None
  running: Array
  counts: Array
  query: Array
  addend: Array | None
  out_norm_scale: Array | None

  @property
  def num_slots(self) -> int:
    """What is merged: the result of phase 1, and the running sum."""
    return 2

  @property
  def like(self) -> Array:
    """Returns an array of the shape [..., D] and dtype of a source; not to be read."""
    return self.running


class MergeStats(NamedTuple):
  """What the reverse pass of a merge keeps beside arrays that are there anyway.

  Numbers per token [...] in float32 or wider, but for the last.

  Attributes:
    inverse_rms: of the running sum; anything finite where that does not count.
    logit: of the running sum; anything finite where that does not count.
    log_odds: log(β / (1 − β)), β the share of the running sum; -inf where that does not count.
    out_inverse_rms: of the output before its norm; None without one.
    low_bits: words [..., W] or [..., W / 128, 128] of what the output lost in rounding, see
      low_bits.py; their order and dtype are the backend's own; None where that needs none.
  """

  inverse_rms: Array
  logit: Array
  log_odds: Array
  out_inverse_rms: Array | None
  low_bits: Array | None


class MergeCotangents(NamedTuple):
  """What the reverse pass of a merge returns.

  Attributes:
    out: [S, ..., D] of phase 1.
    lse: [S, ...] of phase 1.
    running: [..., D], of the running sum and of the addend.
    query: [D], summed over all tokens.
    out_norm_scale: [D], summed over all tokens, or None.
  """

  out: Array
  lse: Array
  running: Array
  query: Array
  out_norm_scale: Array | None


def away_from_zero(scale: Array, dtype: jnp.dtype) -> Array:
  """Moves gains off zero, so far that y / scale recovers what scale multiplied.

  The reverse pass of a merge has its output y = RMS(h) ⊙ scale alone. What y gains by this lies
  below the rounding of its dtype: 1e-19 (6e-5 in float16) at values of RMS 1.
  """
  tiny = float(jnp.finfo(dtype).tiny)
  least = tiny if dtype == jnp.float16 else tiny**0.5
  return jnp.where(jnp.abs(scale) < least, jnp.where(scale < 0, -least, least), scale)
