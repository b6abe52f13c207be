"""Reverse pass of the merge on NVIDIA GPUs, which does not read the result of phase 1.

In place it adds to the cotangent of the running sum, and overwrites one row of the cotangent of
phase 1's outputs.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.base import Array
from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention.mosaic_gpu import two_phase_plan
from resjax.kernels.depth_attention.mosaic_gpu.merge_forward import fold_operands, words_of
from resjax.kernels.depth_attention.operands import (
  MergeCotangents,
  MergeOperands,
  MergeStats,
  Read,
  share,
)
from resjax.kernels.mosaic_gpu import GpuTiles, Ring, call, room_of, row_ops, when
from resjax.kernels.operation import Field

# Positions of a token's rows in the ring.
_D_OUT, _OUT, _RUNNING, _D_RUNNING = range(4)
_WORD_ROWS = 4  # rows of the ring of words
# Registers of a thread that may hold the sums over tokens; wider ones are in shared memory.
_HELD_REGISTERS = 64


class _Inputs(NamedTuple):
  """The inputs of the kernel; `inverse_gain` is 1 / out_norm_scale [D / 128, 128], or None."""

  operands: MergeOperands
  out: Field
  stats: MergeStats
  d_out: Field
  inverse_gain: Field


class _Updated(NamedTuple):
  """Cotangents of out and lse of phase 1, and of the running sum."""

  out: Field
  lse: Field
  running: Field


class _Totals(NamedTuple):
  """Cotangents of query and output gain, summed over tokens: rows [D]; the gain may be None."""

  query: Field
  gain: Field


class _Factors(NamedTuple):
  """Numbers of a token that make up its cotangents. γ is the output gain, 1 without a norm.

  Attributes:
    along: mean(dy ⊙ y).
    rest: factor of γ ⊙ dy − along RMS(h), without a norm of dy, in the cotangent of phase 1.
    share: factor of the same in the cotangent of the running sum.
    d_dot: cotangent of ⟨u, query⟩.
    shrink: factor of −u in the cotangent of the running sum.
  """

  along: Array
  rest: Array
  share: Array
  d_dot: Array
  shrink: Array


def tiles_of(read: Read, operands: MergeOperands) -> GpuTiles | None:
  """Returns the tile sizes of the reverse pass of a merge; None if a token does not fit."""
  like = operands.like
  row = jax.ShapeDtypeStruct((1, like.shape[-1] // row_ops.LANES, row_ops.LANES), like.dtype)
  _, sizes = _word_ring(words_of(row))
  if not _holds(like.shape[-1] // row_ops.LANES):
    sizes += (like.shape[-1],) * (1 if operands.out_norm_scale is None else 2)
  return two_phase_plan.choose_merge(like, 4, room_of(read), sizes)


def backward(
  read: Read, operands: MergeOperands, out: Array, stats: MergeStats,
  d_out: Array, d_running: Array, d_reads: tuple[Array, Array],
) -> MergeCotangents:  # fmt: skip
  """Runs the reverse pass on the rows of one device, see reference/merge.py."""
  folded = fold_operands(operands)
  like, gain = folded.like, folded.out_norm_scale
  word_ring, _ = _word_ring(stats.remainder)
  tiles = tiles_of(read, operands)
  assert tiles is not None  # obstacles.py refuses reads without any
  row = jax.ShapeDtypeStruct(like.shape[1:], jnp.float32)
  totals = _Totals(row, None if gain is None else row)
  sums = None if _holds(row.shape[0]) else jax.tree.map(_shared, totals)
  inverse_gain = None if gain is None else 1 / gain
  d_first, d_lse = d_reads
  written = call.launch(
    read,
    functools.partial(_kernel, read),
    tiles,
    like,
    "depth_attention_merge_backward",
    inputs=_Inputs(folded, call.fold(out), stats, call.fold(d_out), inverse_gain),
    totals=totals,
    updated=_Updated(call.fold(d_first), d_lse, call.fold(d_running)),
    numbers=(word_ring, sums),
  )
  d_query, d_scale = call.unfold(written.totals)
  first, running = call.unfold((written.updated.out, written.updated.running))
  return MergeCotangents(first, written.updated.lse, running, d_query, d_scale)


def _kernel(read: Read, refs: call.Refs) -> None:
  inputs: _Inputs = refs.inputs
  operands = inputs.operands
  tokens, groups, _ = operands.like.shape
  normed = operands.out_norm_scale is not None
  streams = (
    call.row_stream(inputs.d_out),
    call.row_stream(inputs.out),
    call.row_stream(operands.running, operands.counts[0] > 0),
    call.row_stream(refs.updated.running),
  )
  (word_rows, summed), words = refs.numbers, None
  ring = call.make_ring(refs.rings[0], streams, tokens)
  if word_rows:
    words = call.make_ring(word_rows, (call.row_stream(inputs.stats.remainder),), tokens)

  def token_backward(step: Array, totals: _Totals | None) -> _Totals | None:
    token = _Token(read, inputs, refs.updated, ring, words, refs.sums, summed, step)
    totals = token.write(totals)
    row_ops.synchronize()
    for each_ring in filter(None, (ring, words)):
      each_ring.refill(step, range(len(each_ring.streams)))
    return totals

  zeros = row_ops.zeros(groups)
  totals = _Totals(zeros, zeros if normed else None)
  if summed is not None:  # every thread adds to its own channels alone
    jax.tree.map(lambda ref: row_ops.store(ref, zeros), summed)
  carried = lax.fori_loop(
    jnp.int32(0), ring.steps, token_backward, totals if summed is None else None
  )
  totals = carried if summed is None else jax.tree.map(row_ops.load, summed)
  for ref, total in zip(refs.own_totals(), totals, strict=True):
    if total is not None:
      row_ops.store(ref, total)


def _holds(groups: int) -> bool:
  return 2 * groups <= _HELD_REGISTERS


def _shared(row: jax.ShapeDtypeStruct) -> Any:
  return plgpu.SMEM(row.shape, row.dtype)


def _word_ring(words: Array | jax.ShapeDtypeStruct | None) -> tuple[tuple, tuple[int, ...]]:
  """Returns rows and barriers to allocate for a ring of words [T, W / 128, 128], if there are any.

  Also returns the sizes of both as numbers of float32.
  """
  if words is None:
    return (), ()
  rows = plgpu.SMEM((_WORD_ROWS, *words.shape[1:]), words.dtype)
  size = math.prod(rows.shape) * words.dtype.itemsize // 4
  return (rows, plgpu.Barrier(num_barriers=_WORD_ROWS)), (size, 2 * _WORD_ROWS)


@dataclasses.dataclass(frozen=True)
class _Token:
  """A token whose cotangents are computed.

  Attributes:
    read: options.
    inputs: references.
    updated: references.
    ring: rows [D / 128, 128] on their way.
    words: words of bf16_remainder.py on their way; None if there are none.
    sums: memory for sums over channels.
    summed: references of the sums over tokens; None if they are in registers.
    step: index of the token within its program.
  """

  read: Read
  inputs: _Inputs
  updated: _Updated
  ring: Ring
  words: Ring | None
  sums: row_ops.ChannelSums
  summed: _Totals | None
  step: Array

  def write(self, totals: _Totals | None) -> _Totals | None:
    """Writes the cotangents of the token; returns the totals with its part added.

    Totals that are not in registers are None.
    """
    for ring in filter(None, (self.ring, self.words)):
      for position, stream in enumerate(ring.streams):
        when(stream.valid, functools.partial(ring.wait, self.step, position))
    operands, inverse_gain = self.inputs.operands, self.inputs.inverse_gain
    token, slot = self.ring.token(self.step), operands.counts[1]
    factors, d_logit = self._factors()
    self.updated.lse[slot, token] = -d_logit
    d_queries, d_gains, d_first = [], [], self.updated.out.at[slot, token]
    held, summed = totals or _Totals(None, None), self.summed or _Totals(None, None)
    for index in range(row_ops.num_parts(operands.query.shape[0])):
      u, d_mixed = self._running_part(index), self._part(_D_OUT, index)
      if inverse_gain is not None:
        normed = self._out_part(index) * row_ops.load_part(inverse_gain, index)
        d_gains.append(row_ops.add_part(held.gain, summed.gain, index, d_mixed * normed))
        d_mixed = d_mixed * row_ops.load_part(operands.out_norm_scale, index)
        d_mixed -= factors.along * normed
      row_ops.store_part(d_first, index, factors.rest * d_mixed)
      d_running = self._part(_D_RUNNING, index) + factors.share * d_mixed
      d_running += factors.d_dot * row_ops.load_part(operands.query, index) - factors.shrink * u
      row_ops.store_part(self.updated.running.at[token], index, d_running)
      d_queries.append(row_ops.add_part(held.query, summed.query, index, factors.d_dot * u))
    return _Totals(tuple(d_queries), tuple(d_gains) or None) if self.summed is None else None

  def _factors(self) -> tuple[_Factors, Array]:
    """Returns the factors of the token, and the cotangent of the logit of its running sum."""
    operands, stats, sums = self.inputs.operands, self.inputs.stats, self.sums
    width, token = operands.query.shape[0] * row_ops.LANES, self.ring.token(self.step)
    self._sum_products()
    inverse_rms, log_odds = stats.inverse_rms[token], stats.log_odds[token]
    beta, rest, along = share(log_odds), share(-log_odds), sums[0]
    if operands.out_norm_scale is None:
      d_logit = beta * (sums[1] - along)
    else:
      along, scale = along / width, stats.out_inverse_rms[token]
      d_mixed_mixed = width * along * self.read.out_norm_eps * scale * scale  # ⟨dh, h⟩
      d_logit = beta * (scale * (sums[1] - along * sums[2]) - d_mixed_mixed)
      beta, rest = beta * scale, rest * scale
    d_dot = d_logit * inverse_rms
    shrink = d_dot * inverse_rms * stats.logit[token] / width
    return _Factors(along, rest, beta, d_dot, shrink), d_logit

  def _sum_products(self) -> None:
    """Sums dy ⊙ y, dy ⊙ γ ⊙ u and y / γ ⊙ u over channels; without a norm dy ⊙ y and dy ⊙ u."""
    operands, inverse_gain = self.inputs.operands, self.inputs.inverse_gain
    products: list[Array] = []
    for index in range(row_ops.num_parts(operands.query.shape[0])):
      d_out, out, u = self._part(_D_OUT, index), self._out_part(index), self._running_part(index)
      terms = [d_out * out]
      if inverse_gain is None:
        terms += [d_out * u]
      else:
        terms += [d_out * u * row_ops.load_part(operands.out_norm_scale, index)]
        terms += [out * u * row_ops.load_part(inverse_gain, index)]
      # Sums of parts, because registers have no room for the products of a whole row.
      products = [a + b for a, b in zip(products, terms, strict=True)] if index else terms
    for index, total in enumerate(products):
      self.sums.put(index, (total,))
    self.sums.reduce()

  def _part(self, position: int, index: int) -> Array:
    return self.ring.load_part(self.step, position, index)

  def _out_part(self, index: int) -> Array:
    """Returns a part of the output before it was rounded, with the bits that were kept."""
    out = self._part(_OUT, index)
    if self.words is None:
      return out
    word, number = divmod(index, bf16_remainder.per_word(self.words.rows.dtype))
    words = row_ops.load_words(self.words.at(self.step, 0), word, len(out))
    return bf16_remainder.restore(out, words, number)

  def _running_part(self, index: int) -> Array:
    """Returns a part of the running sum, or zeros if the read does not attend to it."""
    part = self._part(_RUNNING, index)
    return jnp.where(self.inputs.operands.counts[0] > 0, part, 0.0)
