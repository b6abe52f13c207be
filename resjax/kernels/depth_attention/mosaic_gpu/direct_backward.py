"""Reverse pass of depth attention on NVIDIA GPUs.

Each source and the cotangent of the output are read once, each cotangent of a source is written
once. The cotangents of query and output gain are summed in registers over the tokens of a program,
which writes one row of each.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.kernels.depth_attention.mosaic_gpu import call, row_ops
from resjax.kernels.depth_attention.mosaic_gpu import tiles as gpu_tiles
from resjax.kernels.depth_attention.mosaic_gpu.call import Shared, row_of
from resjax.kernels.depth_attention.mosaic_gpu.ring import Stream, when
from resjax.kernels.depth_attention.mosaic_gpu.row_ops import LANES, Row, Sums, each
from resjax.kernels.depth_attention.mosaic_gpu.sweep import Sweep
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.typing import Array, PyTree

# Numbers per source, in shared memory: what the cotangent of the output, the query and the source
# itself are multiplied by in the cotangent of the source.
_WEIGHT, _DOT, _SHRINK = range(3)


def backward(
  read: Read, operands: Operands, stats: Stats, d_out: Array, d_sources: PyTree
) -> Cotangents:
  """Reverse pass; see `depth_attention` for the equations, `reference.backward` for the rest."""
  folded = call.fold_operands(operands)
  like = folded.like
  tiles = gpu_tiles.choose_backward(operands.like, operands.num_slots)
  programs = call.num_programs(read, len(like), tiles)
  partial_sum = jax.ShapeDtypeStruct((programs, *like.shape[1:]), jnp.float32)
  d_scale = None if folded.out_norm_scale is None else partial_sum
  d, updated = call.launch(
    read,
    functools.partial(_kernel, read, tiles.group, programs),
    (folded, stats, call.fold(d_out)),
    Cotangents(*call.fresh_sources(read, folded), partial_sum, d_scale),
    tiles=tiles,
    programs=programs,
    like=like,
    name="depth_attention_backward",
    updated=call.fold(d_sources),
    numbers=(plgpu.SMEM((3, LANES), jnp.float32),),
  )
  d = call.unfold(d)
  sums = jax.tree.map(lambda x: jnp.sum(x, axis=0), (d.query, d.out_norm_scale))
  return Cotangents(*(call.unfold(updated) if read.threaded else d[:2]), *sums)


def _kernel(
  read: Read,
  group: int,
  programs: int,
  inputs: PyTree,
  outputs: Cotangents,
  updated,
  shared: Shared,
):
  (buffer,), sums, (numbers,) = shared
  operands, stats, d_out = inputs
  tokens, groups, _ = operands.like.shape
  norms = operands.out_norm_scale is not None
  num_sweeps = 3 if norms else 2
  kept = buffer[0].shape[0] > operands.num_slots
  streams = call.source_streams(operands) * (1 if kept else num_sweeps)
  streams = (Stream(functools.partial(row_of, None, (d_out,), 0)), *streams)
  ring = call.make_ring(buffer, streams, tokens, programs)
  query = row_ops.load(operands.query)

  def token_backward(step, totals):
    token = ring.token(step)
    *mixing, scoring, writing = (
      Sweep(operands, ring, step, group, kept, index, num_sweeps, 1) for index in range(num_sweeps)
    )
    inverse_rms = _column(stats.inverse_rms, token)
    logits = _column(stats.logits, token)
    counts = (_slots() < operands.num_slots) & (logits > -jnp.inf)
    weights = jnp.where(counts, jnp.exp(logits - stats.lse[token]), 0.0)
    numbers[_WEIGHT] = weights
    ring.wait(step, 0)
    d_mixed = ring.load(step, 0)
    ring.release(step, range(1))
    if norms:
      mixed = _mix(mixing[0], numbers, groups)
      d_mixed, d_scale = _norm_backward(read, mixed, operands.out_norm_scale, sums, d_mixed)
      totals = (totals[0], each(jnp.add, totals[1], d_scale))
    scores = _score(scoring, sums, d_mixed)
    d_dot = weights * (scores - jnp.sum(weights * scores)) * inverse_rms
    numbers[_DOT] = d_dot
    numbers[_SHRINK] = d_dot * inverse_rms * jnp.where(counts, logits, 0.0) / (groups * LANES)
    row_ops.synchronize()
    write = functools.partial(_write, read.threaded, updated or outputs[:2], token)
    return (_differentiate(writing, numbers, write, d_mixed, query, totals[0]), *totals[1:])

  totals = (row_ops.zeros(groups),) * (2 if norms else 1)
  totals = lax.fori_loop(jnp.int32(0), ring.steps, token_backward, totals)
  program = call.program()
  row_ops.store(outputs.query.at[program], totals[0])
  if norms:
    row_ops.store(outputs.out_norm_scale.at[program], totals[1])


def _mix(sweep: Sweep, numbers: Any, groups: int) -> Row:
  """Returns Σ_n p_n v_n."""
  row_ops.synchronize()
  mixed = row_ops.zeros(groups)
  for slots in sweep.groups():
    for slot in slots:
      weight = numbers[_WEIGHT, slot]
      mixed = sweep.add(mixed, slot, lambda h, x, p=weight: each(lambda a, b: a + p * b, h, x))
    sweep.release(slots)
  return mixed


def _norm_backward(read: Read, x: Row, scale: Any, sums: Sums, d_out: Row) -> tuple[Row, Row]:
  """Cotangents of x and scale of x · r · scale, r the inverse RMS of the row x."""
  width = len(x) * x[0].size
  d_normed = each(jnp.multiply, d_out, row_ops.load(scale))
  sums.put(0, each(jnp.multiply, x, x))
  sums.put(1, each(jnp.multiply, d_normed, x))
  sums.reduce()
  inverse_rms = lax.rsqrt(sums[0] / width + read.eps)
  along = sums[1] / width * inverse_rms * inverse_rms
  d_x = each(lambda d, x: inverse_rms * (d - along * x), d_normed, x)
  return d_x, each(lambda d, x: d * x * inverse_rms, d_out, x)


def _score(sweep: Sweep, sums: Sums, d_mixed: Row) -> Array:
  """Returns ⟨d_mixed, v_n⟩ of all sources, 0 where they do not count."""
  scores = _vector(jnp.zeros((LANES,), jnp.float32))
  for slots in sweep.groups():
    for i, slot in enumerate(slots):

      def put(i=i, slot=slot):
        sums.put(i, each(jnp.multiply, d_mixed, sweep.load(slot)))

      when(sweep.valid(slot), put)
    sums.reduce()
    for i, slot in enumerate(slots):
      valid = sweep.valid(slot)
      score = sums[i] if valid is None else jnp.where(valid, sums[i], 0.0)
      scores = jnp.where(_slots() == slot, score, scores)
    sweep.release(slots)
  return scores


def _differentiate(
  sweep: Sweep, numbers: Any, write: Callable, d_mixed: Row, query: Row, d_query: Row
) -> Row:
  """Writes the cotangents of all sources; returns that of the query with this token's in it."""
  for slots in sweep.groups():
    for slot in slots:
      weight, dot, shrink = (numbers[i, slot] for i in (_WEIGHT, _DOT, _SHRINK))

      def counted(d_query, x, slot=slot, weight=weight, dot=dot, shrink=shrink):
        own = each(lambda d, q, v: weight * d + dot * q - shrink * v, d_mixed, query, x)
        write(slot, own)
        return each(lambda total, v: total + dot * v, d_query, x)

      if (valid := sweep.valid(slot)) is not None:
        when(~valid, functools.partial(write, slot, None))
      d_query = sweep.add(d_query, slot, counted)
    sweep.release(slots)
  return d_query


def _write(threaded: bool, d_sources: PyTree, token: Array, slot: int, own: Row | None):
  """Writes the cotangent of a source: what it had before, if anything, and `own`, if any."""
  out = row_of(*d_sources, slot, token)
  if not threaded:
    row_ops.store(out, row_ops.zeros(out.shape[0]) if own is None else own)
  elif own is not None:
    row_ops.store(out, each(jnp.add, row_ops.load(out), own))


# One number per source, in the registers of one thread each.
_LAYOUT = plgpu.Layout.WG_STRIDED((LANES,), vec_size=1)


def _vector(x: Array) -> Array:
  return plgpu.layout_cast(x, _LAYOUT)


def _slots() -> Array:
  return plgpu.broadcasted_iota(jnp.int32, (LANES,), 0, layout=_LAYOUT)


def _column(ref: Any, token: Array) -> Array:
  """Reads [:, token] of a reference [N, T]; the rest is zero."""
  column = _vector(jnp.zeros((LANES,), jnp.float32))
  for slot in range(ref.shape[0]):
    column = jnp.where(_slots() == slot, ref[slot, token], column)
  return column
