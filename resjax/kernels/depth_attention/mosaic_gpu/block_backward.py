"""Reverse pass of phase 1 on NVIDIA GPUs: reads nothing that was mixed.

The cotangents of all reads of a token stay in shared memory, and its sources if they fit. Those of
the queries are summed over the tokens of a program in global memory, in rows of its own that the
second-level cache holds: registers and shared memory have no room for all of them.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.kernels.depth_attention.mosaic_gpu import call, pairs, row_ops, two_phase_tiles
from resjax.kernels.depth_attention.mosaic_gpu.call import Shared, row_of
from resjax.kernels.depth_attention.mosaic_gpu.pairs import MAX_SOURCES
from resjax.kernels.depth_attention.mosaic_gpu.ring import Ring, Stream, when
from resjax.kernels.depth_attention.mosaic_gpu.sweep import Sweep
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.typing import Array, PyTree

# Tables of numbers per pair of a read and a source: what the cotangent of the read's output, its
# query and the source itself are multiplied by in the cotangent of the source. The first two hold
# the logit and ⟨dh_s, v_n⟩ before.
_WEIGHT, _DOT, _SHRINK = range(3)
# Reads whose parts registers hold while all sources of a group pass.
_HELD_READS = 8


class _Inputs(NamedTuple):
  operands: Operands
  stats: Stats
  d_out: Any
  d_lse: Any


class _Numbers(NamedTuple):
  """Numbers of a token, in shared memory.

  Attributes:
    tables: [3, S', 32], S' rounded up.
    inverse_rms: [32].
    lse: [S'].
    d_lse: [S'].
  """

  tables: Any
  inverse_rms: Any
  lse: Any
  d_lse: Any


class _Token(NamedTuple):
  """What the walks over a token have in common.

  Attributes:
    inputs: references.
    numbers: of the token.
    index: of the token.
    d_sources: references of the cotangents, laid out like bank and recent sources.
    d_query: the program's sums [S, D / 128, 128].
    d_reads: part s, index -> part of the cotangent of output s.
    before: ring of cotangents that later reads left; None: there are none.
  """

  inputs: _Inputs
  numbers: _Numbers
  index: Array
  d_sources: PyTree
  d_query: Any
  d_reads: Any
  before: Ring | None


def backward(
  read: Read, operands: Operands, stats: Stats, d_out: Array, d_lse: Array, d_sources: PyTree
) -> Cotangents:
  """Reverse pass; see `depth_attention_block`, reference/block.py."""
  folded = call.fold_operands(operands)
  like, num_reads = folded.like, len(operands.query)
  tiles = two_phase_tiles.choose_backward(
    operands.like, operands.num_slots, num_reads, read.threaded
  )
  programs, rows = call.num_programs(read, len(like), tiles), pairs.num_rows(num_reads)
  sums = jax.ShapeDtypeStruct((programs, *folded.query.shape), jnp.float32)
  _, *others = tiles.numbers
  sizes = (3, rows, MAX_SOURCES), *((size,) for size in others)
  d, updated = call.launch(
    read,
    functools.partial(_kernel, read.threaded, tiles.group, programs),
    _Inputs(folded, stats, call.fold(d_out), d_lse),
    Cotangents(*call.fresh_sources(read, folded), sums, None),
    tiles=tiles,
    programs=programs,
    like=like,
    name="depth_attention_block_backward",
    updated=call.fold(d_sources),
    numbers=_Numbers(*(plgpu.SMEM(size, jnp.float32) for size in sizes)),
  )
  bank, recent = call.unfold(updated if read.threaded else d[:2])
  return Cotangents(bank, recent, call.unfold(jnp.sum(d.query, axis=0)), None)


def _kernel(
  threaded: bool, group: int, programs: int, inputs: _Inputs, outputs, updated, shared: Shared
):
  buffers, sums, numbers = shared
  operands, d_sources = inputs.operands, updated if threaded else outputs[:2]
  ring, d_reads, *before = _rings(inputs, buffers, updated, programs)
  kept = ring.rows.shape[0] >= operands.num_slots
  d_query = outputs.query.at[call.program()]
  num_reads, groups = operands.query.shape[:2]
  for s in range(num_reads):
    row_ops.store(d_query.at[s], row_ops.zeros(groups))

  def token_backward(step, _):
    parts = functools.partial(d_reads.load_part, step)
    token = _Token(
      inputs, numbers, ring.token(step), d_sources, d_query, parts, before[0] if before else None
    )
    scoring, writing = (
      Sweep(operands, ring, step, group, kept, index, num_sweeps=2) for index in range(2)
    )
    _load_numbers(token)
    for s in range(num_reads):
      d_reads.wait(step, s)
    _score(token, scoring, sums)
    row_ops.synchronize()
    _differentiate(token)
    row_ops.synchronize()
    for slots in writing.groups():
      _write(token, writing, slots)
    d_reads.release(step, range(num_reads))

  lax.fori_loop(jnp.int32(0), ring.steps, token_backward, None)


def _rings(inputs: _Inputs, buffers: tuple, d_sources: PyTree, programs: int) -> list[Ring]:
  """Returns the rings of sources, of cotangents of reads, and of sources' before, if any."""
  operands, tokens = inputs.operands, inputs.operands.like.shape[0]
  sources = call.source_streams(operands)
  kept = buffers[0][0].shape[0] >= len(sources)
  reads = [
    Stream(functools.partial(row_of, inputs.d_out, (), s)) for s in range(operands.query.shape[0])
  ]
  streams = [sources if kept else 2 * sources, tuple(reads)]
  if d_sources is not None:
    slots = enumerate(sources)
    streams.append(
      tuple(Stream(functools.partial(row_of, *d_sources, n), source.valid) for n, source in slots)
    )
  pairs_of = zip(buffers, streams, strict=True)
  return [call.make_ring(buffer, rows, tokens, programs) for buffer, rows in pairs_of]


def _load_numbers(token: _Token) -> None:
  """Reads the statistics of a token, and the cotangents of lse."""
  (operands, stats, _, d_lse), numbers = token.inputs, token.numbers
  for slot in range(operands.num_slots):
    numbers.inverse_rms[slot] = stats.inverse_rms[slot, token.index]
  for s in range(operands.query.shape[0]):
    numbers.lse[s] = stats.lse[s, token.index]
    numbers.d_lse[s] = d_lse[s, token.index]
    for slot in range(operands.num_slots):
      numbers.tables[_WEIGHT, s, slot] = stats.logits[s, slot, token.index]


def _score(token: _Token, sweep: Sweep, sums: row_ops.Sums) -> None:
  """Puts ⟨dh_s, v_n⟩ of all pairs into `numbers`."""
  num_reads = token.inputs.operands.query.shape[0]
  rows = [functools.partial(token.d_reads, s) for s in range(num_reads)]

  def put(s, slot, value):
    token.numbers.tables[_DOT, s, slot] = value

  for slots in sweep.groups():
    sweep.wait_all(slots)
    pairs.dot_products(sweep, sums, slots, rows, put)
    sweep.release(slots)


def _differentiate(token: _Token) -> None:
  """Turns logits and ⟨dh_s, v_n⟩ into what cotangents are composed with."""
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


def _write(token: _Token, sweep: Sweep, slots: range) -> None:
  """Writes the cotangents of some sources; adds to those of the queries."""
  operands, tables, groups = token.inputs.operands, token.numbers.tables, sweep.ring.rows.shape[1]
  reads, index = range(operands.query.shape[0]), token.index
  if not sweep.kept:
    sweep.wait_all(slots)
  for slot in slots:
    _begin(token, sweep, slot)
  shrinks = {slot: sum(tables[_SHRINK, s, slot] for s in reads) for slot in slots}

  def write_part(part, _):
    held = {s: _read_parts(token, s, part) for s in reads[:_HELD_READS]}

    def add(d_query, slot):
      x = sweep.load_part(slot, part)
      own, d_query = -shrinks[slot] * x, list(d_query)
      for s in reads:
        d_mixed, query = held[s] if s in held else _read_parts(token, s, part)
        own += tables[_WEIGHT, s, slot] * d_mixed + tables[_DOT, s, slot] * query
        d_query[s] += tables[_DOT, s, slot] * x
      if token.before is not None:
        own += token.before.load_part(sweep.step, slot, part)
      row_ops.store_part(row_of(*token.d_sources, slot, index), part, own)
      return tuple(d_query)

    d_query = tuple(row_ops.load_part(token.d_query.at[s], part) for s in reads)
    for slot in slots:
      d_query = sweep.where_valid(slot, functools.partial(add, slot=slot), d_query)
    for s in reads:
      row_ops.store_part(token.d_query.at[s], part, d_query[s])

  lax.fori_loop(0, row_ops.num_parts(groups), write_part, None)
  sweep.release(slots)
  if token.before is not None:
    token.before.release(sweep.step, slots)


def _begin(token: _Token, sweep: Sweep, slot: int) -> None:
  """Waits for what later reads left of a source; where it does not count leaves that, or zeros."""
  valid = sweep.valid(slot)
  if token.before is not None:
    when(valid, functools.partial(token.before.wait, sweep.step, slot))
  elif valid is not None:
    out = row_of(*token.d_sources, slot, token.index)
    when(~valid, lambda: row_ops.store(out, row_ops.zeros(out.shape[0])))


def _read_parts(token: _Token, s: int, part: Array) -> tuple[Array, Array]:
  """Returns a part of the cotangent of an output, and of the query."""
  return token.d_reads(s, part), row_ops.load_part(token.inputs.operands.query.at[s], part)
