"""What the operations of depth attention take, keep for the reverse pass and return.

Every backend takes and returns these tuples. Token axes are written [...]: [B, T] for a model, [T]
inside a kernel, which sees the tokens of one device as rows. S is the number of reads of a depth
block, N the number of slots for sources.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from resjax.base import Array
from resjax.kernels.operation import Field, Options


@dataclasses.dataclass(frozen=True)
class Read(Options):
  """The static options of a depth read, of either phase or direct.

  Attributes:
    num_heads: H, a divisor of D.
    eps: number added to the mean squares of sources.
    adds: whether an addend joins the last source (of a merge: the running sum) first.
    threaded: whether the sources are returned, so that the cotangents of later reads arrive summed.
    out_norm_eps: number added to the mean square of the output in its norm.
  """

  num_heads: int
  eps: float
  adds: bool
  threaded: bool
  out_norm_eps: float = 1e-6


class Operands(NamedTuple):
  """The arrays of a direct read or of phase 1. The slots of `bank` come first, then `recent`.

  Attributes:
    bank: sources [N_max, ..., D], or None.
    recent: tuple of sources [..., D].
    counts: int32 [2]: the number of slots of the bank that hold a source; and 1 if the last of
      `recent` counts, else 0. None where these are cotangents.
    query: query [D], of phase 1 queries [S, D]; the gain of the key norm is multiplied in.
    addend: [..., D], or None.
    out_norm_scale: gain [D] of the norm of the output, or None.
  """

  bank: Field
  recent: tuple[Field, ...]
  counts: Field
  query: Field
  addend: Field
  out_norm_scale: Field

  @property
  def num_slots(self) -> int:
    """N, the number of slots, whether they hold a source or not."""
    return (0 if self.bank is None else self.bank.shape[0]) + len(self.recent)

  @property
  def like(self) -> jax.ShapeDtypeStruct:
    """The shape [..., D] and dtype of a source."""
    if self.bank is None:
      return jax.ShapeDtypeStruct(self.recent[0].shape, self.recent[0].dtype)
    return jax.ShapeDtypeStruct(self.bank.shape[1:], self.bank.dtype)


class Stats(NamedTuple):
  """What the reverse pass keeps of a direct read, and with axis S of phase 1; at least float32.

  Attributes:
    inverse_rms: [N, ...], 1 / RMS of every source.
    logits: [N, ...], [N, ..., H] with several heads, [S, N, ...] of phase 1; -inf at slots that do
      not count.
    lse: log Σ_n exp(logits_n): [...], [..., H] with several heads, [S, ...] of phase 1.
  """

  inverse_rms: Field
  logits: Field
  lse: Field


class Cotangents(NamedTuple):
  """What the reverse pass of a direct read or of phase 1 returns.

  Attributes:
    bank: [N_max, ..., D], or None.
    recent: tuple of arrays [..., D].
    query: [D], of phase 1 [S, D]; summed over all tokens.
    out_norm_scale: [D], summed over all tokens, or None.
  """

  bank: Field
  recent: tuple[Field, ...]
  query: Field
  out_norm_scale: Field


class MergeOperands(NamedTuple):
  """The arrays of a merge.

  Attributes:
    out: outputs [S, ..., D] of phase 1; None in a reverse pass, which does not need them.
    lse: [S, ...] of phase 1; None in a reverse pass.
    running: sum of the depth block so far [..., D]; in a reverse pass the addend is in it.
    counts: int32 [2]: 1 if the running sum counts, or 0, and then it may hold anything; and the
      index of the read that is merged, 0..S-1. None where these are cotangents.
    query: query [D], the gain of the key norm multiplied in.
    addend: [..., D], or None.
    out_norm_scale: gain [D] of the norm of the output, or None.
  """

  out: Field
  lse: Field
  running: Field
  counts: Field
  query: Field
  addend: Field
  out_norm_scale: Field

  @property
  def num_slots(self) -> int:
    """A merge is a read of two sources: the output of phase 1 and the running sum."""
    return 2

  @property
  def like(self) -> jax.ShapeDtypeStruct:
    """The shape [..., D] and dtype of a source."""
    return jax.ShapeDtypeStruct(self.running.shape, self.running.dtype)


class MergeStats(NamedTuple):
  """What the reverse pass keeps of a merge, beside its output and the running sum.

  All but the last are numbers per token [...], at least float32.

  Attributes:
    inverse_rms: 1 / RMS of the running sum; any finite number where that does not count.
    logit: of the running sum; any finite number where that does not count.
    log_odds: log(β / (1 − β)), β the weight of the running sum; -inf where that does not count.
    out_inverse_rms: 1 / RMS of the output before its norm; None without a norm.
    remainder: words [..., W] or [..., W / 128, 128] with what rounding to bfloat16 took from the
      output, see bf16_remainder.py. Each backend has its own order and dtype of words. None where
      the dtype of the output loses too little to be kept.
  """

  inverse_rms: Field
  logit: Field
  log_odds: Field
  out_inverse_rms: Field
  remainder: Field


class MergeCotangents(NamedTuple):
  """What the reverse pass of a merge returns.

  Attributes:
    out: of the outputs of phase 1, [S, ..., D].
    lse: of the lse of phase 1, [S, ...].
    running: of the running sum, and also of the addend, [..., D].
    query: [D], summed over all tokens.
    out_norm_scale: [D], summed over all tokens, or None.
  """

  out: Field
  lse: Field
  running: Field
  query: Field
  out_norm_scale: Field


def away_from_zero(scale: Array, dtype: jnp.dtype) -> Array:
  """Returns gains [D] that are far enough from zero for y / scale to give back RMS(h).

  The reverse pass of a merge has only its output y = RMS(h) ⊙ scale. This changes y by less than
  its dtype resolves: by 1e-19 (in float16 by 6e-5) where RMS(h) is 1.
  """
  tiny = float(jnp.finfo(dtype).tiny)
  least = tiny if dtype == jnp.float16 else tiny**0.5
  return jnp.where(jnp.abs(scale) < least, jnp.where(scale < 0, -least, least), scale)


def share(log_odds: Array) -> Array:
  """Returns the softmax weight of a logit that is above all others by `log_odds`."""
  return 1 / (1 + jnp.exp(-log_odds))


def check_gains(needed: str, width: int, **gains: Array | None) -> None:
  """Raises ValueError if a gain or query is not [D].

  Args:
    needed: words of the error message between the shape that was given and the one that is needed.
    width: D.
    **gains: arrays by the name of their argument, or None.
  """
  for name, gain in gains.items():
    if gain is not None and gain.shape != (width,):
      raise ValueError(f"{name} has shape {gain.shape}; {needed} ({width},)")
