"""Reverse pass of the merge on NVIDIA GPUs: reads no result of phase 1.

The cotangent of the running sum is added to, and that of a row of phase 1 written, where those of
the returned arrays lie.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention.mosaic_gpu import call, row_ops, two_phase_tiles
from resjax.kernels.depth_attention.mosaic_gpu.call import Shared
from resjax.kernels.depth_attention.mosaic_gpu.merge_forward import fold_operands, share
from resjax.kernels.depth_attention.mosaic_gpu.ring import Ring, Stream, when
from resjax.kernels.depth_attention.mosaic_gpu.row_ops import Sums
from resjax.kernels.depth_attention.operands import Read
from resjax.kernels.depth_attention.two_phase_operands import (
  MergeCotangents,
  MergeOperands,
  MergeStats,
)
from resjax.typing import Array

# Rows of a token in the ring.
_D_OUT, _OUT, _RUNNING, _D_RUNNING = range(4)
_WORD_ROWS = 4  # of the ring of words


class _Inputs(NamedTuple):
  """`inverse_gain` is 1 / out_norm_scale, [D / 128, 128], or None."""

  operands: MergeOperands
  out: Any
  stats: MergeStats
  d_out: Any
  inverse_gain: Any


class _Updated(NamedTuple):
  """Cotangents of out and lse of phase 1, and of the running sum."""

  out: Any
  lse: Any
  running: Any


class _Sums(NamedTuple):
  """Cotangents of query and output gain, summed over the tokens of a program: rows [D]."""

  query: Any
  gain: Any


class _Rings(NamedTuple):
  """Of rows [D / 128, 128], and of words of low_bits.py, if there are any."""

  rows: Ring
  words: Ring | None


class _Factors(NamedTuple):
  """Numbers of a token.

  Attributes:
    along: mean(dy ⊙ y).
    rest: of the cotangent of phase 1, in that of h, the scale of the norm multiplied in.
    share: of the cotangent of the running sum, the same.
    d_dot: cotangent of ⟨u, query⟩.
    shrink: what u is multiplied by.
  """

  along: Array
  rest: Array
  share: Array
  d_dot: Array
  shrink: Array


def backward(
  read: Read,
  operands: MergeOperands,
  out: Array,
  stats: MergeStats,
  d_out: Array,
  d_running: Array,
  d_reads: tuple[Array, Array],
) -> MergeCotangents:
  """Reverse pass; see `depth_attention_merge`, reference/merge.py."""
  folded = fold_operands(operands)
  like, gain = folded.like, folded.out_norm_scale
  word_buffer, sizes = _word_buffer(stats.low_bits)
  tiles = two_phase_tiles.choose_merge(operands.like, num_streams=4, numbers=sizes)
  programs = call.num_programs(read, len(like), tiles)
  sums = jax.ShapeDtypeStruct((programs, *like.shape[1:]), jnp.float32)
  inverse_gain = None if gain is None else 1 / gain
  d_first, d_lse = d_reads
  d, updated = call.launch(
    read,
    functools.partial(_kernel, read, programs),
    _Inputs(folded, call.fold(out), stats, call.fold(d_out), inverse_gain),
    _Sums(sums, None if gain is None else sums),
    tiles=tiles,
    programs=programs,
    like=like,
    name="depth_attention_merge_backward",
    updated=_Updated(call.fold(d_first), d_lse, call.fold(d_running)),
    numbers=word_buffer,
  )
  d_query, d_scale = call.unfold(jax.tree.map(lambda x: jnp.sum(x, axis=0), d))
  first, running = call.unfold((updated.out, updated.running))
  return MergeCotangents(first, updated.lse, running, d_query, d_scale)


def _kernel(
  read: Read, programs: int, inputs: _Inputs, outputs: _Sums, updated: _Updated, shared: Shared
):
  (buffer,), sums, word_buffer = shared
  operands = inputs.operands
  tokens, groups, _ = operands.like.shape
  normed = operands.out_norm_scale is not None
  counts = operands.counts[0] > 0
  rows = inputs.d_out, inputs.out, operands.running, updated.running
  streams = tuple(
    Stream(functools.partial(_row_of, ref), counts if index == _RUNNING else None)
    for index, ref in enumerate(rows)
  )
  rings = _Rings(call.make_ring(buffer, streams, tokens, programs), None)
  if word_buffer:
    word_stream = Stream(functools.partial(_row_of, inputs.stats.low_bits))
    rings = rings._replace(words=call.make_ring(word_buffer, (word_stream,), tokens, programs))

  def token_backward(step, totals):
    _wait(rings, step)
    factors, d_logit = _factors(read, inputs, rings, sums, step)
    updated.lse[operands.counts[1], rings.rows.token(step)] = -d_logit
    totals = _write(inputs, updated, rings, step, factors, totals)
    row_ops.synchronize()
    for ring in filter(None, rings):
      ring.refill(step, range(len(ring.streams)))
    return totals

  zeros = row_ops.zeros(groups)
  totals = _Sums(zeros, zeros if normed else None)
  totals = lax.fori_loop(jnp.int32(0), rings.rows.steps, token_backward, totals)
  for ref, total in zip(jax.tree.leaves(outputs), filter(None, totals), strict=True):
    row_ops.store(ref.at[call.program()], total)


def _word_buffer(words: Array | None) -> tuple[tuple, tuple[int, ...]]:
  """Returns what a ring of rows of words [T, W / 128, 128] takes, and its size in float32."""
  if words is None:
    return (), ()
  rows = plgpu.SMEM((_WORD_ROWS, *words.shape[1:]), words.dtype)
  size = math.prod(rows.shape) * words.dtype.itemsize // 4
  return (rows, plgpu.Barrier(num_barriers=_WORD_ROWS)), (size, 2 * _WORD_ROWS)


def _row_of(ref: Any, token: Array) -> Any:
  return ref.at[token]


def _wait(rings: _Rings, step: Array) -> None:
  """Waits for all rows of a token that count."""
  for ring in filter(None, rings):
    for position, stream in enumerate(ring.streams):
      when(stream.valid, functools.partial(ring.wait, step, position))


def _factors(
  read: Read, inputs: _Inputs, rings: _Rings, sums: Sums, step: Array
) -> tuple[_Factors, Array]:
  """Returns the factors of a token, and the cotangent of the logit of its running sum."""
  operands, stats, token = inputs.operands, inputs.stats, rings.rows.token(step)
  width = operands.query.shape[0] * row_ops.LANES
  _sum_products(inputs, rings, sums, step)
  inverse_rms, log_odds = stats.inverse_rms[token], stats.log_odds[token]
  part, rest, along = share(log_odds), share(-log_odds), sums[0]
  if operands.out_norm_scale is None:
    d_logit = part * (sums[1] - along)
  else:
    along, scale = along / width, stats.out_inverse_rms[token]
    within = width * along * read.eps * scale * scale
    d_logit = part * (scale * (sums[1] - along * sums[2]) - within)
    part, rest = part * scale, rest * scale
  d_dot = d_logit * inverse_rms
  shrink = d_dot * inverse_rms * stats.logit[token] / width
  return _Factors(along, rest, part, d_dot, shrink), d_logit


def _sum_products(inputs: _Inputs, rings: _Rings, sums: Sums, step: Array) -> None:
  """Sums dy ⊙ y, dy ⊙ gain ⊙ u and y / gain ⊙ u; without a norm the first, and dy ⊙ u."""
  products = []
  for index in range(row_ops.num_parts(inputs.operands.query.shape[0])):
    d_out, out = rings.rows.load_part(step, _D_OUT, index), _out_part(rings, step, index)
    u = _running_part(inputs, rings.rows, step, index)
    terms = [d_out * out]
    if inputs.inverse_gain is None:
      terms += [d_out * u]
    else:
      terms += [d_out * u * row_ops.load_part(inputs.operands.out_norm_scale, index)]
      terms += [out * u * row_ops.load_part(inputs.inverse_gain, index)]
    products.append(terms)
  for index, row in enumerate(zip(*products, strict=True)):
    sums.put(index, row)
  sums.reduce()


def _write(
  inputs: _Inputs, updated: _Updated, rings: _Rings, step: Array, factors: _Factors, totals: _Sums
) -> _Sums:
  """Writes the cotangents of a token; returns the totals with its part of them."""
  operands, ring, d_queries, d_gains = inputs.operands, rings.rows, [], []
  token = ring.token(step)
  d_first = updated.out.at[operands.counts[1], token]
  for index, d_query in enumerate(totals.query):
    u = _running_part(inputs, ring, step, index)
    d_mixed = ring.load_part(step, _D_OUT, index)
    if inputs.inverse_gain is not None:
      normed = _out_part(rings, step, index) * row_ops.load_part(inputs.inverse_gain, index)
      d_gains.append(totals.gain[index] + d_mixed * normed)
      d_mixed = d_mixed * row_ops.load_part(operands.out_norm_scale, index)
      d_mixed -= factors.along * normed
    row_ops.store_part(d_first, index, factors.rest * d_mixed)
    d_running = ring.load_part(step, _D_RUNNING, index) + factors.share * d_mixed
    d_running += factors.d_dot * row_ops.load_part(operands.query, index) - factors.shrink * u
    row_ops.store_part(updated.running.at[token], index, d_running)
    d_queries.append(d_query + factors.d_dot * u)
  return _Sums(tuple(d_queries), tuple(d_gains) or None)


def _out_part(rings: _Rings, step: Array, index: int) -> Array:
  """Returns a part of the output before its rounding, as far as it was kept."""
  out = rings.rows.load_part(step, _OUT, index)
  if rings.words is None:
    return out
  word, number = divmod(index, bf16_remainder.per_word(rings.words.rows.dtype))
  words = row_ops.load_words(rings.words.at(step, 0), word, len(out))
  return bf16_remainder.restore(out, words, number)


def _running_part(inputs: _Inputs, ring: Ring, step: Array, index: int) -> Array:
  """Returns a part of the running sum, 0 where it does not count."""
  part = ring.load_part(step, _RUNNING, index)
  return jnp.where(inputs.operands.counts[0] > 0, part, 0.0)
