"""Forward pass of phase 1 on NVIDIA GPUs: every source is loaded once, for all reads.

The sources of a token stay in shared memory until they are mixed. The queries stay in global memory
and are held on the chip by the first-level cache; all of them are loaded once per token and group
of sources.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.base import Array
from resjax.kernels.depth_attention.mosaic_gpu import pairs, source_rows, two_phase_plan
from resjax.kernels.depth_attention.mosaic_gpu.pairs import MAX_SOURCES
from resjax.kernels.depth_attention.mosaic_gpu.source_walk import SourceWalk
from resjax.kernels.depth_attention.operands import Operands, Read, Stats
from resjax.kernels.mosaic_gpu import GpuTiles, call, room_of, row_ops
from resjax.kernels.operation import Field, Ref

# Tables of numbers per pair of a read and a source, see pairs.py.
_DOT, _WEIGHT, _LOGIT = range(3)
# Reads that are mixed at a time, with their sums in registers.
_MIXED_READS = 8


class _Outputs(NamedTuple):
  """What the kernel writes: outputs [S, T, D / 128, 128], and statistics."""

  out: Field
  stats: Stats


class _Numbers(NamedTuple):
  """Numbers of a token, in shared memory.

  Attributes:
    tables: [3, S', 32]: three tables, see pairs.py.
    squares: |v_n|², [32].
    inverse_rms: [32].
    lse: [S'].
  """

  tables: Ref
  squares: Ref
  inverse_rms: Ref
  lse: Ref


def tiles_of(read: Read, operands: Operands) -> GpuTiles | None:
  """Returns the tile sizes of the forward pass of phase 1; None if there are none."""
  return two_phase_plan.choose_forward(
    operands.like, operands.num_slots, len(operands.query), room_of(read)
  )


def forward(read: Read, operands: Operands) -> tuple[Array, Stats]:
  """Runs the forward pass on the rows of one device, see reference/block.py."""
  folded = source_rows.fold_operands(operands)
  like, num_reads, slots = folded.like, len(operands.query), operands.num_slots
  tiles = tiles_of(read, operands)
  assert tiles is not None  # obstacles.py refuses reads without any
  tokens, rows = len(like), pairs.num_rows(num_reads)
  shapes = (slots, tokens), (num_reads, slots, tokens), (num_reads, tokens)
  stats = Stats(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
  sizes = (3, rows, MAX_SOURCES), *((size,) for size in tiles.numbers[1:])
  written = call.launch(
    read,
    functools.partial(_kernel, read, tiles.group),
    tiles,
    like,
    "depth_attention_block_forward",
    inputs=folded,
    outputs=_Outputs(jax.ShapeDtypeStruct((num_reads, *like.shape), like.dtype), stats),
    numbers=_Numbers(*(plgpu.SMEM(size, jnp.float32) for size in sizes)),
  ).outputs
  return call.unfold(written.out), written.stats


def _kernel(read: Read, group: int, refs: call.Refs) -> None:
  operands: Operands = refs.inputs
  numbers = _Numbers(*refs.numbers)
  streams = source_rows.source_streams(operands)
  ring = call.make_ring(refs.rings[0], streams, operands.like.shape[0])

  def read_token(step: Array, _: None) -> None:
    token = ring.token(step)
    scoring, mixing = (
      SourceWalk(operands, ring, step, group, kept=True, index=index, num_walks=2)
      for index in range(2)
    )
    for slots in scoring.groups():
      scoring.wait_all(slots)
      _score(operands, scoring, refs.sums, numbers, slots)
    row_ops.synchronize()
    _softmax(read, operands, numbers)
    row_ops.synchronize()
    _write_stats(operands, refs.outputs.stats, numbers, token)
    _mix(operands, refs.outputs.out, numbers, mixing, token)
    for slots in mixing.groups():
      mixing.release(slots)

  lax.fori_loop(jnp.int32(0), ring.steps, read_token, None)


def _score(
  operands: Operands, walk: SourceWalk, sums: row_ops.ChannelSums, numbers: _Numbers, slots: range
) -> None:
  """Writes |v_n|² and the dot products with all queries of a group of sources to `numbers`."""
  queries = [
    functools.partial(row_ops.load_part, operands.query.at[s])
    for s in range(operands.query.shape[0])
  ]

  def put(row: int, slot: int, value: Array) -> None:
    if row == 0:
      numbers.squares[slot] = value
    else:
      numbers.tables[_DOT, row - 1, slot] = value

  pairs.dot_products(walk, sums, slots, [None, *queries], put)


def _softmax(read: Read, operands: Operands, numbers: _Numbers) -> None:
  """Turns the dot products of all reads into logits and weights."""
  rows, width = numbers.lse.shape[0], operands.query.shape[1] * row_ops.LANES
  inverse_rms = lax.rsqrt(pairs.load_sources(numbers.squares) / width + read.eps)
  numbers.inverse_rms[...] = inverse_rms
  logits = pairs.load(numbers.tables.at[_DOT]) * pairs.spread_sources(inverse_rms, rows)
  logits = jnp.where(pairs.valid_sources(operands, rows), logits, -jnp.inf)
  numbers.tables[_LOGIT] = logits
  top = jnp.max(logits, axis=1)
  total = jnp.sum(jnp.exp(logits - pairs.spread_reads(top)), axis=1)
  lse = top + jnp.log(total)
  numbers.lse[...] = lse
  numbers.tables[_WEIGHT] = jnp.exp(logits - pairs.spread_reads(lse))


def _write_stats(operands: Operands, stats: Stats, numbers: _Numbers, token: Array) -> None:
  """Writes the statistics of a token to global memory."""
  for slot in range(operands.num_slots):
    stats.inverse_rms[slot, token] = numbers.inverse_rms[slot]
  for s in range(operands.query.shape[0]):
    stats.lse[s, token] = numbers.lse[s]
    for slot in range(operands.num_slots):
      stats.logits[s, slot, token] = numbers.tables[_LOGIT, s, slot]


def _mix(operands: Operands, out: Ref, numbers: _Numbers, walk: SourceWalk, token: Array) -> None:
  """Writes h_s = Σ_n P_sn v_n of all reads, a part of the channels at a time."""
  num_reads, groups = operands.query.shape[:2]
  for start in range(0, num_reads, _MIXED_READS):
    reads = range(start, min(start + _MIXED_READS, num_reads))

    def mix_part(index: Array, _: None, reads: range = reads) -> None:
      def add(mixed: tuple, slot: int) -> tuple:
        x = walk.load_part(slot, index)
        weights = (numbers.tables[_WEIGHT, s, slot] for s in reads)
        return tuple(h + weight * x for h, weight in zip(mixed, weights, strict=True))

      mixed = (row_ops.zeros(groups)[0],) * len(reads)
      for slot in range(operands.num_slots):
        mixed = walk.where_valid(slot, functools.partial(add, slot=slot), mixed)
      for s, h in zip(reads, mixed, strict=True):
        row_ops.store_part(out.at[s, token], index, h)

    lax.fori_loop(0, row_ops.num_parts(groups), mix_part, None)
