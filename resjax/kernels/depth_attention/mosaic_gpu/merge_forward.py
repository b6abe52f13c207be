"""Forward pass of the merge on NVIDIA GPUs: residual add, merge and norm in one kernel."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from resjax.base import Array
from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention.mosaic_gpu import two_phase_plan
from resjax.kernels.depth_attention.operands import (
  MergeOperands,
  MergeStats,
  Read,
  away_from_zero,
  share,
)
from resjax.kernels.mosaic_gpu import GpuTiles, Ring, Row, Stream, call, room_of, row_ops, when
from resjax.kernels.operation import Field, Ref

# Positions of a token's rows in the ring.
_FIRST, _RUNNING, _ADDEND = range(3)
# The narrowest word, for two parts of a row: few widths have a multiple of four parts.
_WORD = jnp.dtype("int8")


class _Outputs(NamedTuple):
  """What the kernel writes: rows [T, D / 128, 128], and statistics."""

  out: Field
  running: Field
  stats: MergeStats


def tiles_of(read: Read, operands: MergeOperands) -> GpuTiles | None:
  """Returns the tile sizes of the forward pass of a merge; None if a token does not fit."""
  return two_phase_plan.choose_merge(operands.like, 2 + read.adds, room_of(read))


def forward(read: Read, operands: MergeOperands) -> tuple[Array, Array | None, MergeStats]:
  """Runs the forward pass on the rows of one device, see reference/merge.py."""
  folded = fold_operands(operands)
  like, normed = folded.like, operands.out_norm_scale is not None
  row = jax.ShapeDtypeStruct(like.shape, like.dtype)
  number = jax.ShapeDtypeStruct((len(like),), jnp.float32)
  stats = MergeStats(number, number, number, number if normed else None, words_of(like))
  tiles = tiles_of(read, operands)
  assert tiles is not None  # obstacles.py refuses reads without any
  kernel, name = functools.partial(_kernel, read), "depth_attention_merge_forward"
  outputs = _Outputs(row, row if read.adds else None, stats)
  written = call.launch(read, kernel, tiles, like, name, inputs=folded, outputs=outputs).outputs
  return *call.unfold((written.out, written.running)), written.stats


def fold_operands(operands: MergeOperands) -> MergeOperands:
  """Folds all operands that have channels; gains become float32 and none of them is zero."""
  gain = operands.out_norm_scale
  if gain is not None:
    gain = away_from_zero(gain.astype(jnp.float32), operands.like.dtype)
  rows = operands._replace(lse=None, counts=None, out_norm_scale=gain)
  return call.fold(rows)._replace(lse=operands.lse, counts=operands.counts)


def _kernel(read: Read, refs: call.Refs) -> None:
  operands: MergeOperands = refs.inputs
  outputs: _Outputs = refs.outputs
  sums = refs.sums
  tokens, groups, _ = operands.like.shape
  ring = call.make_ring(refs.rings[0], _streams(read, operands), tokens)

  def merge_token(step: Array, _: None) -> None:
    token, stats = ring.token(step), outputs.stats
    lse = operands.lse[operands.counts[1], token]  # ahead of its use, while the rows arrive
    u = _running(read, operands, outputs, ring, step)
    sums.put(0, row_ops.each(jnp.multiply, u, u))
    sums.put(1, row_ops.each(jnp.multiply, u, row_ops.load(operands.query)))
    sums.reduce()
    inverse_rms = lax.rsqrt(sums[0] / (groups * row_ops.LANES) + read.eps)
    logit = sums[1] * inverse_rms
    log_odds = jnp.where(operands.counts[0] > 0, logit - lse, -jnp.inf)
    stats.inverse_rms[token] = inverse_rms
    stats.logit[token] = logit
    stats.log_odds[token] = log_odds
    beta, rest = share(log_odds), share(-log_odds)
    ring.wait(step, _FIRST)
    h = row_ops.each(lambda first, u: rest * first + beta * u, ring.load(step, _FIRST), u)
    ring.release(step, range(len(ring.streams)))
    if operands.out_norm_scale is not None:
      out_inverse_rms = sums.inverse_rms(h, read.out_norm_eps)
      stats.out_inverse_rms[token] = out_inverse_rms
      h = row_ops.scaled(h, out_inverse_rms, operands.out_norm_scale)
    row_ops.store(outputs.out.at[token], h)
    if stats.remainder is not None:
      _store_remainder(stats.remainder.at[token], h, outputs.out.dtype)

  lax.fori_loop(jnp.int32(0), ring.steps, merge_token, None)


def words_of(like: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct | None:
  """Returns the shape [T, W / 128, 128] of what rounding takes from the output; None if nothing."""
  if not bf16_remainder.is_kept(like.dtype):
    return None
  tokens, groups, lanes = like.shape
  rows = bf16_remainder.num_words(row_ops.num_parts(groups), _WORD) * row_ops.part_size(groups)
  return jax.ShapeDtypeStruct((tokens, rows, lanes), _WORD)


def _store_remainder(ref: Ref, h: Row, dtype: jnp.dtype) -> None:
  """Writes what rounding takes from a row; neighbouring parts of the row share words."""
  remainders = row_ops.each(bf16_remainder.remainder, h, row_ops.rounded(h, dtype))
  count = bf16_remainder.per_word(_WORD)
  for index, start in enumerate(range(0, len(remainders), count)):
    row_ops.store_part(ref, index, bf16_remainder.pack(remainders[start : start + count], _WORD))


def _streams(read: Read, operands: MergeOperands) -> tuple[Stream, ...]:
  # Where there is an addend the sum is returned, for which a running sum that does not count is
  # needed too.
  counts = None if read.adds else operands.counts[0] > 0
  first = Stream(lambda token: operands.out.at[operands.counts[1], token])
  addend = (call.row_stream(operands.addend),) if read.adds else ()
  return first, call.row_stream(operands.running, counts), *addend


def _running(
  read: Read, operands: MergeOperands, outputs: _Outputs, ring: Ring, step: Array
) -> Row:
  """Writes the running sum with the addend; returns it, or zeros where it does not count."""
  when(ring.streams[_RUNNING].valid, functools.partial(ring.wait, step, _RUNNING))
  u = ring.load(step, _RUNNING)
  if read.adds:
    ring.wait(step, _ADDEND)
    u = row_ops.rounded(row_ops.each(jnp.add, u, ring.load(step, _ADDEND)), ring.rows.dtype)
    row_ops.store(outputs.running.at[ring.token(step)], u)
  counts = operands.counts[0] > 0
  return row_ops.each(lambda part: jnp.where(counts, part, 0.0), u)
