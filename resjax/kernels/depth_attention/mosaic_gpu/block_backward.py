"""Reverse pass of phase 1 on NVIDIA GPUs, which does not read the outputs of the forward pass.

The cotangents of all reads of a token stay in shared memory, and so do its sources if they fit. The
cotangents of the queries are summed over the tokens of a program: in shared memory where there is
room, else in global memory, in rows of the program's own that the second-level cache holds.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.base import Array, PyTree
from resjax.kernels.depth_attention.mosaic_gpu import pairs, source_rows, two_phase_plan
from resjax.kernels.depth_attention.mosaic_gpu.pairs import MAX_SOURCES
from resjax.kernels.depth_attention.mosaic_gpu.source_rows import row_of
from resjax.kernels.depth_attention.mosaic_gpu.source_walk import SourceWalk
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.kernels.mosaic_gpu import GpuTiles, Ring, Stream, call, room_of, row_ops, when
from resjax.kernels.operation import Field, Ref

# Tables of numbers per pair of a read and a source: the factors of the cotangent of the read's
# output, of its query and of the source itself in the cotangent of the source. At first the first
# two hold the logit and ⟨dh_s, v_n⟩.
_WEIGHT, _DOT, _SHRINK = range(3)
# Reads whose parts stay in registers while all sources of a group pass.
_HELD_READS = 8


class _Inputs(NamedTuple):
  operands: Operands
  stats: Stats
  d_out: Field
  d_lse: Field


class _Numbers(NamedTuple):
  """Numbers of a token, in shared memory.

  Attributes:
    tables: [3, S', 32]: three tables, see pairs.py.
    inverse_rms: [32].
    lse: [S'].
    d_lse: [S'].
  """

  tables: Ref
  inverse_rms: Ref
  lse: Ref
  d_lse: Ref


class _Token(NamedTuple):
  """A token and all that its walks have in common.

  Attributes:
    inputs: references.
    numbers: numbers of the token, in shared memory.
    token: number of the token.
    d_sources: references of the cotangents of bank and recent sources.
    d_query: reference of the program's sums [S, D / 128, 128], in shared or global memory.
    d_reads: function (s, index) -> part of the cotangent of output s.
    before: ring of the cotangents of sources that later reads left; None if there are none.
  """

  inputs: _Inputs
  numbers: _Numbers
  token: Array
  d_sources: PyTree
  d_query: Ref
  d_reads: Callable[[int, Array], Array]
  before: Ring | None


def tiles_of(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the reverse pass of phase 1; None if there are none."""
  return two_phase_plan.choose_backward(
    operands.like, operands.num_slots, len(operands.query), read.threaded, room_of(read)
  )


def backward(
  read: Read, operands: Operands, stats: Stats, d_out: Array, d_lse: Array, d_sources: PyTree
) -> Cotangents:
  """Runs the reverse pass on the rows of one device, see reference/block.py."""
  folded, num_reads = source_rows.fold_operands(operands), len(operands.query)
  tiles = tiles_of(read, operands)
  assert tiles is not None  # obstacles.py refuses reads without any
  names = len(_Numbers._fields)
  sizes = (3, pairs.num_rows(num_reads), MAX_SOURCES), *((size,) for size in tiles.numbers[1:names])
  numbers = _Numbers(*(plgpu.SMEM(size, jnp.float32) for size in sizes))
  summed = (plgpu.SMEM(folded.query.shape, jnp.float32),) if len(tiles.numbers) > names else ()
  written = call.launch(
    read,
    functools.partial(_kernel, read.threaded, tiles.group),
    tiles,
    folded.like,
    "depth_attention_block_backward",
    inputs=_Inputs(folded, stats, call.fold(d_out), d_lse),
    outputs=source_rows.fresh_sources(read, folded),
    totals=jax.ShapeDtypeStruct(folded.query.shape, jnp.float32),
    updated=call.fold(d_sources),
    numbers=(numbers, *summed),
  )
  bank, recent = call.unfold(written.updated if read.threaded else written.outputs)
  return Cotangents(bank, recent, call.unfold(written.totals), None)


def _kernel(threaded: bool, group: int, refs: call.Refs) -> None:
  inputs: _Inputs = refs.inputs
  operands, (numbers, *summed) = inputs.operands, refs.numbers
  ring, d_reads, *before = _rings(inputs, refs)
  kept = ring.rows.shape[0] >= operands.num_slots
  d_query = summed[0] if summed else refs.own_totals()
  num_reads, groups = operands.query.shape[:2]
  for s in range(num_reads):  # every thread adds to its own channels alone
    row_ops.store(d_query.at[s], row_ops.zeros(groups))

  def token_backward(step: Array, _: None) -> None:
    token = _Token(
      inputs,
      numbers,
      ring.token(step),
      d_sources=refs.updated if threaded else refs.outputs,
      d_query=d_query,
      d_reads=functools.partial(d_reads.load_part, step),
      before=before[0] if before else None,
    )
    scoring, writing = (
      SourceWalk(operands, ring, step, group, kept, index, num_walks=2) for index in range(2)
    )
    _load_numbers(token)
    for s in range(num_reads):
      d_reads.wait(step, s)
    _score(token, scoring, refs.sums)
    row_ops.synchronize()
    _differentiate(token)
    row_ops.synchronize()
    for slots in writing.groups():
      _write(token, writing, slots)
    d_reads.release(step, range(num_reads))

  lax.fori_loop(jnp.int32(0), ring.steps, token_backward, None)
  for s in range(num_reads if summed else 0):
    row_ops.store(refs.own_totals().at[s], row_ops.load(d_query.at[s]))


def _rings(inputs: _Inputs, refs: call.Refs) -> list[Ring]:
  """Returns rings of sources, of output cotangents, and if threaded of source cotangents."""
  operands = inputs.operands
  sources = source_rows.source_streams(operands)
  kept = refs.rings[0][0].shape[0] >= len(sources)
  d_reads = tuple(
    Stream(functools.partial(row_of, inputs.d_out, (), s)) for s in range(operands.query.shape[0])
  )
  streams = [sources if kept else 2 * sources, d_reads]
  if refs.updated is not None:
    bank, recent = refs.updated
    before = (
      Stream(functools.partial(row_of, bank, recent, slot), source.valid)
      for slot, source in enumerate(sources)
    )
    streams.append(tuple(before))
  return [
    call.make_ring(buffer, rows, operands.like.shape[0])
    for buffer, rows in zip(refs.rings, streams, strict=True)
  ]


def _load_numbers(token: _Token) -> None:
  """Copies the statistics of a token, and the cotangents of lse, to shared memory."""
  (operands, stats, _, d_lse), numbers = token.inputs, token.numbers
  for slot in range(operands.num_slots):
    numbers.inverse_rms[slot] = stats.inverse_rms[slot, token.token]
  for s in range(operands.query.shape[0]):
    numbers.lse[s] = stats.lse[s, token.token]
    numbers.d_lse[s] = d_lse[s, token.token]
    for slot in range(operands.num_slots):
      numbers.tables[_WEIGHT, s, slot] = stats.logits[s, slot, token.token]


def _score(token: _Token, walk: SourceWalk, sums: row_ops.ChannelSums) -> None:
  """Writes ⟨dh_s, v_n⟩ of all pairs to `numbers`."""
  num_reads = token.inputs.operands.query.shape[0]
  rows = [functools.partial(token.d_reads, s) for s in range(num_reads)]

  def put(s: int, slot: int, value: Array) -> None:
    token.numbers.tables[_DOT, s, slot] = value

  for slots in walk.groups():
    walk.wait_all(slots)
    pairs.dot_products(walk, sums, slots, rows, put)
    walk.release(slots)


def _differentiate(token: _Token) -> None:
  """Turns logits and ⟨dh_s, v_n⟩ into the factors that make up the cotangents."""
  numbers, operands = token.numbers, token.inputs.operands
  tables, rows = numbers.tables, numbers.lse.shape[0]
  valid = pairs.valid_sources(operands, rows)
  logits = jnp.where(valid, pairs.load(tables.at[_WEIGHT]), 0.0)
  scores = jnp.where(valid, pairs.load(tables.at[_DOT]), 0.0)
  inverse_rms = pairs.spread_sources(pairs.load_sources(numbers.inverse_rms), rows)
  weights = jnp.exp(logits - pairs.spread_reads(pairs.load_reads(numbers.lse)))
  weights = jnp.where(valid, weights, 0.0)
  centre = jnp.sum(weights * scores, axis=1) - pairs.load_reads(numbers.d_lse)
  d_dots = weights * (scores - pairs.spread_reads(centre)) * inverse_rms
  tables[_WEIGHT] = weights
  tables[_DOT] = d_dots
  tables[_SHRINK] = d_dots * inverse_rms * logits / (operands.query.shape[1] * row_ops.LANES)


def _write(token: _Token, walk: SourceWalk, slots: range) -> None:
  """Writes the cotangents of a group of sources; adds to the cotangents of the queries."""
  operands, tables, groups = token.inputs.operands, token.numbers.tables, walk.ring.rows.shape[1]
  reads = range(operands.query.shape[0])
  if not walk.kept:
    walk.wait_all(slots)
  for slot in slots:
    _begin(token, walk, slot)
  shrinks = {slot: sum(tables[_SHRINK, s, slot] for s in reads) for slot in slots}

  def write_part(part: Array, _: None) -> None:
    held = {s: _read_parts(token, s, part) for s in reads[:_HELD_READS]}

    def add(d_queries: tuple, slot: int) -> tuple:
      x = walk.load_part(slot, part)
      own, new = -shrinks[slot] * x, list(d_queries)
      for s in reads:
        d_mixed, query = held[s] if s in held else _read_parts(token, s, part)
        own += tables[_WEIGHT, s, slot] * d_mixed + tables[_DOT, s, slot] * query
        new[s] += tables[_DOT, s, slot] * x
      if token.before is not None:
        own += token.before.load_part(walk.step, slot, part)
      row_ops.store_part(_cotangent(token, slot), part, own)
      return tuple(new)

    d_queries = tuple(row_ops.load_part(token.d_query.at[s], part) for s in reads)
    for slot in slots:
      d_queries = walk.one_by_one(slot, functools.partial(add, slot=slot), d_queries)
    for s in reads:
      row_ops.store_part(token.d_query.at[s], part, d_queries[s])

  lax.fori_loop(0, row_ops.num_parts(groups), write_part, None)
  walk.release(slots)
  if token.before is not None:
    token.before.release(walk.step, slots)


def _begin(token: _Token, walk: SourceWalk, slot: int) -> None:
  """Waits for the cotangent that later reads left, or zeroes that of a slot that does not count."""
  valid = walk.valid(slot)
  if token.before is not None:
    when(valid, functools.partial(token.before.wait, walk.step, slot))
  elif valid is not None:
    out = _cotangent(token, slot)
    when(~valid, lambda: row_ops.store(out, row_ops.zeros(out.shape[0])))


def _cotangent(token: _Token, slot: int) -> Ref:
  bank, recent = token.d_sources
  return row_of(bank, recent, slot, token.token)


def _read_parts(token: _Token, s: int, part: Array) -> tuple[Array, Array]:
  return token.d_reads(s, part), row_ops.load_part(token.inputs.operands.query.at[s], part)
