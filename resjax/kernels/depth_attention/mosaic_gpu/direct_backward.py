"""Reverse pass of the direct read on NVIDIA GPUs.

The cotangent of the output is loaded once, and so is every source if all sources of a token fit
into shared memory; the cotangent of every source is written once. What later reads left of it
passes through a ring of its own. The cotangents of query and output gain are summed over the tokens
of a program, which writes one row of each: in registers, that of the gain of wide rows in shared
memory. Beside these sums a thread has room for its channels of one more row, the cotangent of the
mix: others are used part by part.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.base import Array, PyTree
from resjax.kernels.depth_attention.mosaic_gpu import direct_plan, source_rows
from resjax.kernels.depth_attention.mosaic_gpu.source_rows import row_of
from resjax.kernels.depth_attention.mosaic_gpu.source_walk import SourceWalk
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.kernels.mosaic_gpu import GpuTiles, Ring, Row, Stream, call, room_of, row_ops, when
from resjax.kernels.operation import LANES, Ref

# Numbers per source, in shared memory: the factors of the cotangent of the mix, of the query and of
# the source itself in the cotangent of the source.
_WEIGHT, _DOT, _SHRINK = range(3)
# Registers of a thread that may hold rows all the time: the sums, the cotangent of the mix, and if
# there is room the query.
_HELD_REGISTERS = 128


def tiles_of(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the reverse pass of a read; None if there are none."""
  like, room = operands.like, room_of(read)
  sums = like.shape[-1] if _shares_gain(operands, like.shape[-1] // LANES) else 0
  return direct_plan.choose_backward(like, operands.num_slots, read.threaded, room, sums)


def _shares_gain(operands: Operands, groups: int) -> bool:
  return operands.out_norm_scale is not None and 3 * groups > _HELD_REGISTERS


def backward(
  read: Read, operands: Operands, stats: Stats, d_out: Array, d_sources: PyTree
) -> Cotangents:
  """Runs the reverse pass on the rows of one device, see reference/direct.py."""
  folded = source_rows.fold_operands(operands)
  like, tiles = folded.like, tiles_of(read, operands)
  assert tiles is not None  # obstacles.py refuses reads without any
  row = jax.ShapeDtypeStruct(like.shape[1:], jnp.float32)
  shared = (plgpu.SMEM(row.shape, row.dtype),) * _shares_gain(folded, row.shape[0])
  written = call.launch(
    read,
    functools.partial(_kernel, read, tiles.group),
    tiles,
    like,
    "depth_attention_backward",
    inputs=(folded, stats, call.fold(d_out)),
    outputs=source_rows.fresh_sources(read, folded),
    totals=(row, None if folded.out_norm_scale is None else row),
    updated=call.fold(d_sources),
    numbers=(plgpu.SMEM((3, LANES), jnp.float32), *shared),
  )
  d_sources = written.updated if read.threaded else written.outputs
  return Cotangents(*call.unfold((*d_sources, *written.totals)))


def _kernel(read: Read, group: int, refs: call.Refs) -> None:
  sums, (numbers, *shared) = refs.sums, refs.numbers
  operands, stats, d_out = refs.inputs
  tokens, groups, _ = operands.like.shape
  normed = operands.out_norm_scale is not None
  num_walks = 3 if normed else 2
  kept = refs.rings[0][0].shape[0] > operands.num_slots
  sources = source_rows.source_streams(operands)
  # A row of the ring must not be held while rows behind it are waited for that only its release
  # would fetch: where sources do not stay, d_out comes behind the walk that mixes them.
  place = operands.num_slots if normed and not kept else 0
  streams = sources * (1 if kept else num_walks)
  streams = (*streams[:place], call.row_stream(d_out), *streams[place:])
  ring = call.make_ring(refs.rings[0], streams, tokens)
  before = None
  if read.threaded:
    bank, recent = refs.updated
    left = (
      Stream(functools.partial(row_of, bank, recent, slot), source.valid)
      for slot, source in enumerate(sources)
    )
    before = call.make_ring(refs.rings[1], tuple(left), tokens)
  rows = 3 if normed else 2  # sums and the cotangent of the mix
  held = (rows + 1) * groups <= _HELD_REGISTERS
  query = row_ops.load(operands.query) if held else operands.query
  d_sources = refs.updated if read.threaded else refs.outputs

  def token_backward(step: Array, totals: tuple[Row, ...]) -> tuple[Row, ...]:
    token = ring.token(step)
    *mixing, scoring, writing = (
      SourceWalk(
        operands, ring, step, group, kept, index, num_walks, before=0 if place and not index else 1
      )
      for index in range(num_walks)
    )
    inverse_rms = _column(stats.inverse_rms, token)
    logits = _column(stats.logits, token)
    counts = (_slots() < operands.num_slots) & (logits > -jnp.inf)
    weights = jnp.where(counts, jnp.exp(logits - stats.lse[token]), 0.0)
    numbers[_WEIGHT] = weights
    if normed:
      mixed = _mix(mixing[0], numbers, groups)
      ring.wait(step, place)
      d_out = functools.partial(ring.load_part, step, place)
      total, ref = (None, shared[0]) if shared else (totals[1], None)
      d_mixed, d_scale = _norm_backward(
        read, mixed, operands.out_norm_scale, sums, d_out, total, ref
      )
      totals = totals[:1] if shared else (totals[0], d_scale)
    else:
      ring.wait(step, place)
      d_mixed = ring.load(step, place)
    ring.release(step, range(place, place + 1))
    scores = _score(scoring, sums, d_mixed)
    d_dot = weights * (scores - jnp.sum(weights * scores)) * inverse_rms
    numbers[_DOT] = d_dot
    numbers[_SHRINK] = d_dot * inverse_rms * jnp.where(counts, logits, 0.0) / (groups * LANES)
    row_ops.synchronize()
    writer = _Writer(writing, numbers, d_sources, before, d_mixed, query)
    return (writer.write(totals[0]), *totals[1:])

  for ref in shared:  # every thread adds to its own channels alone
    row_ops.store(ref, row_ops.zeros(groups))
  totals = (row_ops.zeros(groups),) * (2 if normed and not shared else 1)
  totals = lax.fori_loop(jnp.int32(0), ring.steps, token_backward, totals)
  totals = *totals, *map(row_ops.load, shared)
  for ref, total in zip(refs.own_totals(), totals, strict=False):  # without a norm one is None
    row_ops.store(ref, total)


def _mix(walk: SourceWalk, numbers: Ref, groups: int) -> Row:
  """Returns h = Σ_n p_n v_n."""
  row_ops.synchronize()
  mixed = row_ops.zeros(groups)
  for slots in walk.groups():
    for slot in slots:
      weight = numbers[_WEIGHT, slot]
      mixed = walk.add(
        mixed, slot, lambda h, x, p=weight: row_ops.each(lambda a, b: a + p * b, h, x)
      )
    walk.release(slots)
  return mixed


def _norm_backward(
  read: Read,
  x: Row,
  scale: Ref,
  sums: row_ops.ChannelSums,
  d_out: Callable[[int], Array],
  total: Row | None,
  ref: Ref | None,
) -> tuple[Row, Row]:
  """Returns the cotangent of x, and that of scale added to a total.

  Args:
    read: options.
    x: the input of the norm.
    scale: gain of the norm.
    sums: memory for sums over channels.
    d_out: function that loads a part of the cotangent of RMS(x) ⊙ scale; it is called twice.
    total: cotangent of scale so far; None if it is in memory.
    ref: reference of it in memory, or None.
  """
  width, parts = len(x) * x[0].size, range(len(x))
  squares = along = row_ops.zeros(x[0].shape[0])[0]
  for index in parts:
    squares += x[index] * x[index]
    along += d_out(index) * row_ops.load_part(scale, index) * x[index]
  sums.put(0, (squares,))
  sums.put(1, (along,))
  sums.reduce()
  inverse_rms = lax.rsqrt(sums[0] / width + read.out_norm_eps)
  share = sums[1] / width * inverse_rms * inverse_rms
  d_x, d_scale = [], []
  for index in parts:
    d = d_out(index)
    d_scale.append(row_ops.add_part(total, ref, index, d * x[index] * inverse_rms))
    d_x.append(inverse_rms * (d * row_ops.load_part(scale, index) - share * x[index]))
  return tuple(d_x), tuple(d_scale)


def _score(walk: SourceWalk, sums: row_ops.ChannelSums, d_mixed: Row) -> Array:
  """Returns ⟨d_mixed, v_n⟩ of all slots, 0 where a slot does not count."""
  scores = _vector(jnp.zeros((LANES,), jnp.float32))
  for slots in walk.groups():
    for i, slot in enumerate(slots):

      def put(i: int = i, slot: int = slot) -> None:
        walk.wait(slot)
        own = d_mixed[0] * walk.load_part(slot, 0)
        for index in range(1, len(d_mixed)):
          own += d_mixed[index] * walk.load_part(slot, index)
        sums.put(i, (own,))

      when(walk.valid(slot), put)
    sums.reduce()
    for i, slot in enumerate(slots):
      valid = walk.valid(slot)
      score = sums[i] if valid is None else jnp.where(valid, sums[i], 0.0)
      scores = jnp.where(_slots() == slot, score, scores)
    walk.release(slots)
  return scores


@dataclasses.dataclass(frozen=True)
class _Writer:
  """Writes the cotangents of the sources of a token.

  Attributes:
    walk: the last one over the sources.
    numbers: factors per source, in shared memory.
    d_sources: references of the cotangents of bank and recent sources.
    before: ring of the cotangents that later reads left; None if there are none.
    d_mixed: cotangent of the mix.
    query: the query, in registers or a reference.
  """

  walk: SourceWalk
  numbers: Ref
  d_sources: PyTree
  before: Ring | None
  d_mixed: Row
  query: Row | Ref

  def write(self, d_query: Row) -> Row:
    """Writes the cotangents of all sources; adds this token's part to that of the query."""
    walk, before = self.walk, self.before
    for slots in walk.groups():
      for slot in slots:
        counted = functools.partial(self._counted, slot)
        if before is None and (valid := walk.valid(slot)) is not None:
          when(~valid, functools.partial(self._clear, slot))
        d_query = walk.one_by_one(slot, counted, d_query)
      walk.release(slots)
      if before is not None:
        before.refill(walk.step, slots)
    return d_query

  def _counted(self, slot: int, d_query: Row) -> Row:
    """Writes the cotangent of a source that counts: its own, plus what later reads left."""
    walk, step, out = self.walk, self.walk.step, self._out(slot)
    walk.wait(slot)
    if self.before is not None:
      self.before.wait(step, slot)
    weight, dot, shrink = (self.numbers[i, slot] for i in (_WEIGHT, _DOT, _SHRINK))
    totals = []
    for index, d_mixed in enumerate(self.d_mixed):
      x = walk.load_part(slot, index)
      own = weight * d_mixed + dot * self._query_part(index) - shrink * x
      if self.before is not None:
        own += self.before.load_part(step, slot, index)
      row_ops.store_part(out, index, own)
      totals.append(d_query[index] + dot * x)
    return tuple(totals)

  def _clear(self, slot: int) -> None:
    out = self._out(slot)
    row_ops.store(out, row_ops.zeros(out.shape[0]))

  def _query_part(self, index: int) -> Array:
    if isinstance(self.query, tuple):
      return self.query[index]
    return row_ops.load_part(self.query, index)

  def _out(self, slot: int) -> Ref:
    bank, recent = self.d_sources
    return row_of(bank, recent, slot, self.walk.ring.token(self.walk.step))


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
