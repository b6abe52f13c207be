"""The merge on NVIDIA GPUs: add, merge of the running sum with a read of phase 1, norm."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention.mosaic_gpu import call, row_ops, two_phase_tiles
from resjax.kernels.depth_attention.mosaic_gpu.call import Shared
from resjax.kernels.depth_attention.mosaic_gpu.ring import Ring, Stream, when
from resjax.kernels.depth_attention.mosaic_gpu.row_ops import Row, Sums, each
from resjax.kernels.depth_attention.operands import Read
from resjax.kernels.depth_attention.two_phase_operands import (
  MergeOperands,
  MergeStats,
  away_from_zero,
)
from resjax.typing import Array

# Rows of a token in the ring.
_FIRST, _RUNNING, _ADDEND = range(3)
_WORD = jnp.int8  # the narrowest: at few widths is the number of parts a multiple of four


class Outputs(NamedTuple):
  """What the kernel writes: rows [T, D / 128, 128], numbers [T]."""

  out: Array
  running: Array | None
  stats: MergeStats


def forward(read: Read, operands: MergeOperands) -> tuple[Array, Array | None, MergeStats]:
  """Merges; see `depth_attention_merge`, reference/merge.py."""
  folded = fold_operands(operands)
  like, normed = folded.like, operands.out_norm_scale is not None
  row = jax.ShapeDtypeStruct(like.shape, like.dtype)
  number = jax.ShapeDtypeStruct((len(like),), jnp.float32)
  stats = MergeStats(number, number, number, number if normed else None, _words(like))
  tiles = two_phase_tiles.choose_merge(operands.like, num_streams=2 + read.adds)
  programs = call.num_programs(read, len(like), tiles)
  result, _ = call.launch(
    read,
    functools.partial(_kernel, read, programs),
    folded,
    Outputs(row, row if read.adds else None, stats),
    tiles=tiles,
    programs=programs,
    like=like,
    name="depth_attention_merge_forward",
  )
  return *call.unfold((result.out, result.running)), result.stats


def fold_operands(operands: MergeOperands) -> MergeOperands:
  """Folds what has channels; gains are float32, and none is zero."""
  gain = operands.out_norm_scale
  if gain is not None:
    gain = away_from_zero(gain.astype(jnp.float32), operands.like.dtype)
  wide = operands._replace(lse=None, counts=None, out_norm_scale=gain)
  return call.fold(wide)._replace(lse=operands.lse, counts=operands.counts)


def share(log_odds: Array) -> Array:
  """Returns what a logit above all others by `log_odds` gets of a softmax."""
  return 1 / (1 + jnp.exp(-log_odds))


def _kernel(
  read: Read, programs: int, operands: MergeOperands, outputs: Outputs, _, shared: Shared
):
  (buffer,), sums, _ = shared
  tokens, groups, _ = operands.like.shape
  ring = call.make_ring(buffer, _streams(read, operands), tokens, programs)

  def merge_token(step, _):
    token, stats = ring.token(step), outputs.stats
    u = _running(read, operands, outputs, ring, step)
    sums.put(0, each(jnp.multiply, u, u))
    sums.put(1, each(jnp.multiply, u, row_ops.load(operands.query)))
    sums.reduce()
    inverse_rms = lax.rsqrt(sums[0] / (groups * row_ops.LANES) + read.eps)
    logit = sums[1] * inverse_rms
    log_odds = logit - operands.lse[operands.counts[1], token]
    log_odds = jnp.where(operands.counts[0] > 0, log_odds, -jnp.inf)
    stats.inverse_rms[token] = inverse_rms
    stats.logit[token] = logit
    stats.log_odds[token] = log_odds
    part, rest = share(log_odds), share(-log_odds)
    ring.wait(step, _FIRST)
    h = each(lambda first, u: rest * first + part * u, ring.load(step, _FIRST), u)
    ring.release(step, range(len(ring.streams)))
    if operands.out_norm_scale is not None:
      h = _norm(read, operands, stats.out_inverse_rms.at[token], sums, h)
    row_ops.store(outputs.out.at[token], h)
    if stats.low_bits is not None:
      _store_low_bits(stats.low_bits.at[token], h, outputs.out.dtype)

  lax.fori_loop(jnp.int32(0), ring.steps, merge_token, None)


def _words(like: Array) -> jax.ShapeDtypeStruct | None:
  """Returns the shape [T, W / 128, 128] of what rounding takes from the output, or None."""
  if not bf16_remainder.are_kept(like.dtype):
    return None
  tokens, groups, lanes = like.shape
  rows = bf16_remainder.num_words(row_ops.num_parts(groups), _WORD) * row_ops.part_size(groups)
  return jax.ShapeDtypeStruct((tokens, rows, lanes), _WORD)


def _store_low_bits(ref: Any, h: Row, dtype: Any) -> None:
  """Writes words of what rounding takes from a row, each of as many parts as it holds."""
  steps, count = (
    each(bf16_remainder.lost, h, row_ops.rounded(h, dtype)),
    bf16_remainder.per_word(_WORD),
  )
  for index, start in enumerate(range(0, len(steps), count)):
    row_ops.store_part(ref, index, bf16_remainder.pack(steps[start : start + count], _WORD))


def _streams(read: Read, operands: MergeOperands) -> tuple[Stream, ...]:
  # The running sum is needed for the one that is returned even if it does not count.
  counts = None if read.adds else operands.counts[0] > 0
  first = Stream(lambda token: operands.out.at[operands.counts[1], token])
  running = Stream(lambda token: operands.running.at[token], counts)
  addend = (Stream(lambda token: operands.addend.at[token]),) if read.adds else ()
  return first, running, *addend


def _running(read: Read, operands, outputs: Outputs, ring: Ring, step: Array) -> Row:
  """Returns the running sum with the addend, 0 where it does not count; writes the sum."""
  when(ring.streams[_RUNNING].valid, functools.partial(ring.wait, step, _RUNNING))
  u = ring.load(step, _RUNNING)
  if read.adds:
    ring.wait(step, _ADDEND)
    u = row_ops.rounded(each(jnp.add, u, ring.load(step, _ADDEND)), ring.rows.dtype)
    row_ops.store(outputs.running.at[ring.token(step)], u)
  counts = operands.counts[0] > 0
  return each(lambda part: jnp.where(counts, part, 0.0), u)


def _norm(read: Read, operands: MergeOperands, inverse_rms_ref: Any, sums: Sums, h: Row) -> Row:
  sums.put(0, each(jnp.multiply, h, h))
  sums.reduce()
  inverse_rms = lax.rsqrt(sums[0] / (operands.query.shape[0] * row_ops.LANES) + read.eps)
  inverse_rms_ref[...] = inverse_rms
  scale = row_ops.load(operands.out_norm_scale)
  return each(lambda part, gain: part * inverse_rms * gain, h, scale)
