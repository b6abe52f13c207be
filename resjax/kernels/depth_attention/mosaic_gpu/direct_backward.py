"""Reverse pass of the direct read on NVIDIA GPUs.

The cotangent of the output is loaded once, and so is every source if those of a token fit into
shared memory; the cotangent of every source is written once. The cotangents of query and output
gain are summed in registers over the tokens of a program, which writes one row of each.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.kernels.depth_attention.mosaic_gpu import call, row_ops
from resjax.kernels.depth_attention.mosaic_gpu import tiles as gpu_tiles
from resjax.kernels.depth_attention.mosaic_gpu.call import Refs, row_of, row_stream
from resjax.kernels.depth_attention.mosaic_gpu.ring import when
from resjax.kernels.depth_attention.mosaic_gpu.row_ops import LANES, ChannelSums, Row, each
from resjax.kernels.depth_attention.mosaic_gpu.source_walk import SourceWalk
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Ref, Stats
from resjax.typing import Array, PyTree

# Numbers per source, in shared memory: the factors of the cotangent of the mix, of the query and of
# the source itself in the cotangent of the source.
_WEIGHT, _DOT, _SHRINK = range(3)


def backward(
  read: Read, operands: Operands, stats: Stats, d_out: Array, d_sources: PyTree
) -> Cotangents:
  """Runs the reverse pass on the rows of one device, see reference/direct.py."""
  folded = call.fold_operands(operands)
  like, tiles = folded.like, gpu_tiles.choose_backward(operands.like, operands.num_slots)
  row = jax.ShapeDtypeStruct(like.shape[1:], jnp.float32)
  written = call.launch(
    read,
    functools.partial(_kernel, read, tiles.group),
    tiles,
    like,
    "depth_attention_backward",
    inputs=(folded, stats, call.fold(d_out)),
    outputs=call.fresh_sources(read, folded),
    totals=(row, None if folded.out_norm_scale is None else row),
    updated=call.fold(d_sources),
    numbers=(plgpu.SMEM((3, LANES), jnp.float32),),
  )
  d_sources = written.updated if read.threaded else written.outputs
  return Cotangents(*call.unfold((*d_sources, *written.totals)))


def _kernel(read: Read, group: int, refs: Refs) -> None:
  sums, (numbers,) = refs.sums, refs.numbers
  operands, stats, d_out = refs.inputs
  tokens, groups, _ = operands.like.shape
  normed = operands.out_norm_scale is not None
  num_walks = 3 if normed else 2
  kept = refs.rings[0][0].shape[0] > operands.num_slots
  streams = call.source_streams(operands) * (1 if kept else num_walks)
  ring = call.make_ring(refs.rings[0], (row_stream(d_out), *streams), tokens)
  query = row_ops.load(operands.query)

  def token_backward(step: Array, totals: tuple[Row, ...]) -> tuple[Row, ...]:
    token = ring.token(step)
    *mixing, scoring, writing = (
      SourceWalk(operands, ring, step, group, kept, index, num_walks, before=1)
      for index in range(num_walks)
    )
    inverse_rms = _column(stats.inverse_rms, token)
    logits = _column(stats.logits, token)
    counts = (_slots() < operands.num_slots) & (logits > -jnp.inf)
    weights = jnp.where(counts, jnp.exp(logits - stats.lse[token]), 0.0)
    numbers[_WEIGHT] = weights
    ring.wait(step, 0)
    d_mixed = ring.load(step, 0)
    ring.release(step, range(1))
    if normed:
      mixed = _mix(mixing[0], numbers, groups)
      d_mixed, d_scale = _norm_backward(read, mixed, operands.out_norm_scale, sums, d_mixed)
      totals = (totals[0], each(jnp.add, totals[1], d_scale))
    scores = _score(scoring, sums, d_mixed)
    d_dot = weights * (scores - jnp.sum(weights * scores)) * inverse_rms
    numbers[_DOT] = d_dot
    numbers[_SHRINK] = d_dot * inverse_rms * jnp.where(counts, logits, 0.0) / (groups * LANES)
    row_ops.synchronize()
    d_sources = refs.updated if read.threaded else refs.outputs
    write = functools.partial(_write, read.threaded, d_sources, token)
    return (_differentiate(writing, numbers, write, d_mixed, query, totals[0]), *totals[1:])

  totals = (row_ops.zeros(groups),) * (2 if normed else 1)
  totals = lax.fori_loop(jnp.int32(0), ring.steps, token_backward, totals)
  for ref, total in zip(refs.own_totals(), totals, strict=False):  # without a norm one is None
    row_ops.store(ref, total)


def _mix(walk: SourceWalk, numbers: Ref, groups: int) -> Row:
  """Returns h = Σ_n p_n v_n."""
  row_ops.synchronize()
  mixed = row_ops.zeros(groups)
  for slots in walk.groups():
    for slot in slots:
      weight = numbers[_WEIGHT, slot]
      mixed = walk.add(mixed, slot, lambda h, x, p=weight: each(lambda a, b: a + p * b, h, x))
    walk.release(slots)
  return mixed


def _norm_backward(
  read: Read, x: Row, scale: Ref, sums: ChannelSums, d_out: Row
) -> tuple[Row, Row]:
  """Returns the cotangents of x and of scale, where d_out is that of RMS(x) ⊙ scale."""
  width = len(x) * x[0].size
  d_normed = each(jnp.multiply, d_out, row_ops.load(scale))
  sums.put(0, each(jnp.multiply, x, x))
  sums.put(1, each(jnp.multiply, d_normed, x))
  sums.reduce()
  inverse_rms = lax.rsqrt(sums[0] / width + read.out_norm_eps)
  along = sums[1] / width * inverse_rms * inverse_rms
  d_x = each(lambda d, x: inverse_rms * (d - along * x), d_normed, x)
  return d_x, each(lambda d, x: d * x * inverse_rms, d_out, x)


def _score(walk: SourceWalk, sums: ChannelSums, d_mixed: Row) -> Array:
  """Returns ⟨d_mixed, v_n⟩ of all slots, 0 where a slot does not count."""
  scores = _vector(jnp.zeros((LANES,), jnp.float32))
  for slots in walk.groups():
    for i, slot in enumerate(slots):

      def put(i: int = i, slot: int = slot) -> None:
        sums.put(i, each(jnp.multiply, d_mixed, walk.load(slot)))

      when(walk.valid(slot), put)
    sums.reduce()
    for i, slot in enumerate(slots):
      valid = walk.valid(slot)
      score = sums[i] if valid is None else jnp.where(valid, sums[i], 0.0)
      scores = jnp.where(_slots() == slot, score, scores)
    walk.release(slots)
  return scores


def _differentiate(
  walk: SourceWalk, numbers: Ref, write: Callable, d_mixed: Row, query: Row, d_query: Row
) -> Row:
  """Writes the cotangents of all sources; adds this token's part to that of the query."""
  for slots in walk.groups():
    for slot in slots:
      factors = tuple(numbers[i, slot] for i in (_WEIGHT, _DOT, _SHRINK))

      def counted(d_query: Row, x: Row, slot: int = slot, factors: tuple = factors) -> Row:
        weight, dot, shrink = factors
        own = each(lambda d, q, v: weight * d + dot * q - shrink * v, d_mixed, query, x)
        write(slot, own)
        return each(lambda total, v: total + dot * v, d_query, x)

      if (valid := walk.valid(slot)) is not None:
        when(~valid, functools.partial(write, slot, None))
      d_query = walk.add(d_query, slot, counted)
    walk.release(slots)
  return d_query


def _write(threaded: bool, d_sources: PyTree, token: Array, slot: int, own: Row | None) -> None:
  """Writes the cotangent of a source: what later reads left, if anything, plus `own`, if any."""
  bank, recent = d_sources
  out = row_of(bank, recent, slot, token)
  if not threaded:
    row_ops.store(out, row_ops.zeros(out.shape[0]) if own is None else own)
  elif own is not None:
    row_ops.store(out, each(jnp.add, row_ops.load(out), own))


# A vector of one number per slot, each in the registers of one thread.
_LAYOUT = plgpu.Layout.WG_STRIDED((LANES,), vec_size=1)


def _vector(x: Array) -> Array:
  return plgpu.layout_cast(x, _LAYOUT)


def _slots() -> Array:
  return plgpu.broadcasted_iota(jnp.int32, (LANES,), 0, layout=_LAYOUT)


def _column(ref: Ref, token: Array) -> Array:
  """Reads [:, token] of a reference [N, T] as a vector, zero past N."""
  column = _vector(jnp.zeros((LANES,), jnp.float32))
  for slot in range(ref.shape[0]):
    column = jnp.where(_slots() == slot, ref[slot, token], column)
  return column
