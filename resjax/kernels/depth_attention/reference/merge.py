"""The merge of two-phase depth attention in plain JAX."""

import jax
import jax.numpy as jnp

from resjax.base import Array, aligned
from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention.operands import (
  MergeCotangents,
  MergeOperands,
  MergeStats,
  Read,
  away_from_zero,
)
from resjax.kernels.depth_attention.reference.each_source import wide

_WORD = jnp.dtype("int16")  # holds the remainders of four channels


def forward(read: Read, operands: MergeOperands) -> tuple[Array, Array | None, MergeStats]:
  """Runs the forward pass; see `depth_attention_merge` for the equations.

  Returns:
    The output [..., D]; the running sum with the addend in it, or None; statistics.
  """
  running = None
  if read.adds:
    running = operands.running + operands.addend
    operands = operands._replace(running=running)
  (counts, slot), v = operands.counts, _running(operands)
  first, lse = (jax.lax.dynamic_index_in_dim(x, slot, 0, False) for x in operands[:2])
  inverse_rms = jax.lax.rsqrt(jnp.mean(v**2, axis=-1) + read.eps)
  logit = jnp.sum(v * aligned(wide(operands.query), v), axis=-1) * inverse_rms
  log_odds = jnp.where(counts > 0, logit - lse, -jnp.inf)
  out = _share(-log_odds) * wide(first) + _share(log_odds) * v
  out_inverse_rms = None
  if operands.out_norm_scale is not None:
    out_inverse_rms = jax.lax.rsqrt(jnp.mean(out**2, axis=-1) + read.out_norm_eps)
    out = out * out_inverse_rms[..., None] * _gain(operands)
  dtype = operands.running.dtype
  words = _remainder(out) if bf16_remainder.is_kept(dtype) else None
  stats = MergeStats(inverse_rms, logit, log_odds, out_inverse_rms, words)
  return out.astype(dtype), running, stats


def backward(
  read: Read, operands: MergeOperands, out: Array, stats: MergeStats,
  d_out: Array, d_running: Array, d_reads: tuple[Array, Array],
) -> MergeCotangents:  # fmt: skip
  """Runs the reverse pass, which does not read the result of phase 1.

  Args:
    read: options, as in the forward pass.
    operands: arrays, as in the forward pass, but with the addend in the running sum and without
      the result of phase 1.
    out: output [..., D] of the forward pass.
    stats: statistics of the forward pass.
    d_out: cotangent of the output [..., D].
    d_running: cotangent [..., D] of the returned running sum, to which that of this merge is added.
    d_reads: cotangents of the returned out and lse of phase 1; this merge overwrites one row each.
  """
  v, dtype = _running(operands), operands.running.dtype
  query = aligned(wide(operands.query), v)
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
  return MergeCotangents(d_first, d_lse, (wide(d_running) + d_v).astype(dtype), d_query, d_scale)


def _mixed_backward(
  read: Read, operands: MergeOperands, out: Array, stats: MergeStats, d_out: Array
) -> tuple[Array, Array, Array | None]:
  """Returns the cotangent dh of h, the dot product ⟨dh, h⟩, and the cotangent of the gain."""
  out, d_out = _restored(out, stats.remainder), wide(d_out)
  if operands.out_norm_scale is None:
    return d_out, jnp.sum(d_out * out, axis=-1), None
  inverse_rms, gain = stats.out_inverse_rms, _gain(operands)
  normed = out / gain
  along = jnp.mean(d_out * out, axis=-1)
  d_scale = jnp.sum(d_out * normed, axis=tuple(range(out.ndim - 1)))
  d_mixed = inverse_rms[..., None] * (gain * d_out - along[..., None] * normed)
  return d_mixed, out.shape[-1] * along * read.out_norm_eps * inverse_rms**2, d_scale


def _remainder(out: Array) -> Array:
  """Returns words with what rounding takes from the output [..., D]: word i is of channels i + kW.

  A word has the remainders of four channels, one of each quarter of the channels; the last quarter
  is padded with zeros to the length W of the others.
  """
  return bf16_remainder.pack(_quarters(bf16_remainder.remainder(out, _rounded(out))), _WORD)


def _restored(out: Array, words: Array | None) -> Array:
  """Returns the output before it was rounded, with the bits that were kept."""
  out = wide(out)
  if words is None:
    return out
  words, quarters = words.astype(jnp.int32), _quarters(_rounded(out))
  parts = [bf16_remainder.restore(part, words, index) for index, part in enumerate(quarters)]
  restored = jnp.concatenate(parts, axis=-1)[..., : out.shape[-1]]
  # The bits have no derivative. The output has one, and it is that of the restored output.
  return out + jax.lax.stop_gradient(restored - out)


def _rounded(x: Array) -> Array:
  """Returns x rounded to bfloat16 by an operation that XLA does not remove, unlike two casts."""
  return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _quarters(x: Array) -> list[Array]:
  """Returns the four quarters of the channels, each [..., W]."""
  count = bf16_remainder.per_word(_WORD)
  padding = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % count)]
  return jnp.split(jnp.pad(x, padding), count, axis=-1)


def _running(operands: MergeOperands) -> Array:
  """Returns the running sum, or zeros if the read does not attend to it."""
  return wide(jnp.where(operands.counts[0] > 0, operands.running, 0))


def _gain(operands: MergeOperands) -> Array:
  gain = away_from_zero(wide(operands.out_norm_scale), operands.running.dtype)
  return aligned(gain, operands.running)


def _share(log_odds: Array) -> Array:
  """Returns the softmax weight [..., 1] of a logit that is above all others by `log_odds` [...]."""
  return jax.nn.sigmoid(log_odds)[..., None]
