"""The merge of two-phase depth attention in plain JAX."""

import jax
import jax.numpy as jnp

from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention.operands import Read
from resjax.kernels.depth_attention.two_phase_operands import (
  MergeCotangents,
  MergeOperands,
  MergeStats,
  away_from_zero,
)
from resjax.typing import Array, wide_dtype

_WORD = jnp.int16


def forward(read: Read, operands: MergeOperands) -> tuple[Array, Array | None, MergeStats]:
  """Merges; see `depth_attention_merge` for the equations.

  Returns:
    The output [..., D]; the running sum with the addend in it, or None; statistics.
  """
  running = operands.running + operands.addend if read.adds else None
  if read.adds:
    operands = operands._replace(running=running)
  (valid, slot), v = operands.counts, _running(operands)
  first, lse = (jax.lax.dynamic_index_in_dim(x, slot, 0, False) for x in operands[:2])
  inverse_rms = jax.lax.rsqrt(jnp.mean(v**2, axis=-1) + read.eps)
  logit = jnp.sum(v * _wide(operands.query), axis=-1) * inverse_rms
  log_odds = jnp.where(valid > 0, logit - lse, -jnp.inf)
  out = _share(-log_odds) * _wide(first) + _share(log_odds) * v
  out_inverse_rms = None
  if operands.out_norm_scale is not None:
    out_inverse_rms = jax.lax.rsqrt(jnp.mean(out**2, axis=-1) + read.eps)
    out = out * out_inverse_rms[..., None] * _gain(operands)
  dtype = operands.running.dtype
  words = _low_bits(out) if bf16_remainder.are_kept(dtype) else None
  stats = MergeStats(inverse_rms, logit, log_odds, out_inverse_rms, words)
  return out.astype(dtype), running, stats


def backward(
  read: Read,
  operands: MergeOperands,
  out: Array,
  stats: MergeStats,
  d_out: Array,
  d_running: Array,
  d_reads: tuple[Array, Array],
) -> MergeCotangents:
  """Reverse pass; the result of phase 1 is not read.

  Args:
    read: as in the forward pass.
    operands: as in the forward pass, the addend joined to the running sum, nothing of phase 1.
    out: what the forward pass returned.
    stats: of the forward pass.
    d_out: cotangent of the output [..., D].
    d_running: cotangent of the returned running sum, to which that of this merge is added.
    d_reads: cotangents of the returned out and lse of phase 1, of which this merge writes a row.
  """
  v, query, dtype = _running(operands), _wide(operands.query), operands.running.dtype
  d_mixed, along, d_scale = _mixed_backward(read, operands, out, stats, d_out)
  share, rest = _share(stats.log_odds), _share(-stats.log_odds)
  d_logit = share[..., 0] * (jnp.sum(d_mixed * v, axis=-1) - along)
  d_dot = (d_logit * stats.inverse_rms)[..., None]
  shrink = d_dot * (stats.inverse_rms * stats.logit)[..., None] / v.shape[-1]
  d_v = share * d_mixed + d_dot * query - shrink * v
  d_query = jnp.sum(d_dot * v, axis=tuple(range(v.ndim - 1)))
  rows, slot = ((rest * d_mixed).astype(dtype), -d_logit), operands.counts[1]
  d_first, d_lse = (
    jax.lax.dynamic_update_index_in_dim(d, row, slot, 0)
    for d, row in zip(d_reads, rows, strict=True)
  )
  return MergeCotangents(d_first, d_lse, (_wide(d_running) + d_v).astype(dtype), d_query, d_scale)


def _mixed_backward(read, operands, out, stats, d_out):
  """Returns the cotangent of h, its dot product ⟨dh, h⟩ with h, and the cotangent of the gain."""
  out, d_out = _restored(out, stats.low_bits), _wide(d_out)
  if operands.out_norm_scale is None:
    return d_out, jnp.sum(d_out * out, axis=-1), None
  inverse_rms, gain = stats.out_inverse_rms, _gain(operands)
  normed = out / gain
  along = jnp.mean(d_out * out, axis=-1)
  d_scale = jnp.sum(d_out * normed, axis=tuple(range(out.ndim - 1)))
  d_mixed = inverse_rms[..., None] * (gain * d_out - along[..., None] * normed)
  return d_mixed, out.shape[-1] * along * read.eps * inverse_rms**2, d_scale


def _low_bits(out: Array) -> Array:
  """Returns words of what rounding takes from the output: its quarters joined, the last padded."""
  return bf16_remainder.pack(_quarters(bf16_remainder.lost(out, _rounded(out))), _WORD)


def _restored(out: Array, words: Array | None) -> Array:
  """Returns the output before its rounding, as far as it was kept."""
  out = _wide(out)
  if words is None:
    return out
  words, quarters = words.astype(jnp.int32), _quarters(_rounded(out))
  parts = [bf16_remainder.restore(part, words, index) for index, part in enumerate(quarters)]
  restored = jnp.concatenate(parts, axis=-1)[..., : out.shape[-1]]
  # What is put together from bits has no derivative, but the output has one.
  return out + jax.lax.stop_gradient(restored - out)


def _rounded(x: Array) -> Array:
  """Rounds to bfloat16; XLA may drop a conversion there and back, but not this."""
  return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _quarters(x: Array) -> list[Array]:
  count = bf16_remainder.per_word(_WORD)
  padding = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % count)]
  return jnp.split(jnp.pad(x, padding), count, axis=-1)


def _running(operands: MergeOperands) -> Array:
  """Returns the running sum; zero where it does not count."""
  return _wide(jnp.where(operands.counts[0] > 0, operands.running, 0))


def _gain(operands: MergeOperands) -> Array:
  return away_from_zero(_wide(operands.out_norm_scale), operands.running.dtype)


def _share(log_odds: Array) -> Array:
  """Returns what a logit above all others by `log_odds` gets of a softmax: [..., 1]."""
  return jax.nn.sigmoid(log_odds)[..., None]


def _wide(x: Array) -> Array:
  return x.astype(wide_dtype(x))
