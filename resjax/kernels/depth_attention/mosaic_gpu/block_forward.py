"""Phase 1 on NVIDIA GPUs: every source is read once, for all reads of a depth block.

The sources of a token stay in shared memory until they are mixed. The queries lie in global memory,
and on the chip in the first-level cache; each passes once per token and group of sources.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.kernels.depth_attention.mosaic_gpu import call, pairs, row_ops, two_phase_tiles
from resjax.kernels.depth_attention.mosaic_gpu.call import Shared
from resjax.kernels.depth_attention.mosaic_gpu.pairs import MAX_SOURCES
from resjax.kernels.depth_attention.mosaic_gpu.sweep import Sweep
from resjax.kernels.depth_attention.operands import Operands, Read, Stats
from resjax.typing import Array

# Tables of numbers per pair of a read and a source.
_DOT, _WEIGHT, _LOGIT = range(3)
# Reads that are mixed at a time, their sums in registers.
_MIXED_READS = 8


class Outputs(NamedTuple):
  """What the kernel writes: outputs [S, T, D / 128, 128], statistics."""

  out: Array
  stats: Stats


class _Numbers(NamedTuple):
  """Numbers of a token, in shared memory.

  Attributes:
    tables: [3, S', 32], S' rounded up.
    squares: |v_n|², [32].
    inverse_rms: [32].
    lse: [S'].
  """

  tables: Any
  squares: Any
  inverse_rms: Any
  lse: Any


def forward(read: Read, operands: Operands) -> tuple[Array, Stats]:
  """All reads of a depth block; see `depth_attention_block`, reference/block.py."""
  folded = call.fold_operands(operands)
  like, num_reads, slots = folded.like, len(operands.query), operands.num_slots
  tokens, rows = len(like), pairs.num_rows(num_reads)
  shapes = (slots, tokens), (num_reads, slots, tokens), (num_reads, tokens)
  stats = Stats(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
  out = jax.ShapeDtypeStruct((num_reads, *like.shape), like.dtype)
  tiles = two_phase_tiles.choose_forward(operands.like, slots, num_reads)
  programs = call.num_programs(read, tokens, tiles)
  _, *others = tiles.numbers
  sizes = (3, rows, MAX_SOURCES), *((size,) for size in others)
  numbers = _Numbers(*(plgpu.SMEM(size, jnp.float32) for size in sizes))
  result, _ = call.launch(
    read,
    functools.partial(_kernel, read, tiles.group, programs),
    folded,
    Outputs(out, stats),
    tiles=tiles,
    programs=programs,
    like=like,
    name="depth_attention_block_forward",
    numbers=numbers,
  )
  return call.unfold(result.out), result.stats


def _kernel(
  read: Read, group: int, programs: int, operands: Operands, outputs: Outputs, _, shared: Shared
):
  (buffer,), sums, numbers = shared
  ring = call.make_ring(buffer, call.source_streams(operands), operands.like.shape[0], programs)

  def read_token(step, _):
    token = ring.token(step)
    scoring, mixing = (
      Sweep(operands, ring, step, group, kept=True, index=index, num_sweeps=2) for index in range(2)
    )
    for slots in scoring.groups():
      scoring.wait_all(slots)
      _score(operands, scoring, sums, numbers, slots)
    row_ops.synchronize()
    _softmax(read, operands, numbers)
    row_ops.synchronize()
    _write_stats(operands, outputs.stats, numbers, token)
    _mix(operands, outputs.out, numbers, mixing, token)
    for slots in mixing.groups():
      mixing.release(slots)

  lax.fori_loop(jnp.int32(0), ring.steps, read_token, None)


def _score(operands: Operands, sweep: Sweep, sums, numbers: _Numbers, slots: range) -> None:
  """Puts |v_n|² and the dot products with all queries of some sources into `numbers`."""
  queries = [
    functools.partial(row_ops.load_part, operands.query.at[s])
    for s in range(operands.query.shape[0])
  ]

  def put(row, slot, value):
    if row == 0:
      numbers.squares[slot] = value
    else:
      numbers.tables[_DOT, row - 1, slot] = value

  pairs.dot_products(sweep, sums, slots, [None, *queries], put)


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
  """Writes the numbers of a token."""
  for slot in range(operands.num_slots):
    stats.inverse_rms[slot, token] = numbers.inverse_rms[slot]
  for s in range(operands.query.shape[0]):
    stats.lse[s, token] = numbers.lse[s]
    for slot in range(operands.num_slots):
      stats.logits[s, slot, token] = numbers.tables[_LOGIT, s, slot]


def _mix(operands: Operands, out: Any, numbers: _Numbers, sweep: Sweep, token: Array) -> None:
  """Writes h_s = Σ_n P_sn v_n."""
  num_reads, groups = operands.query.shape[:2]
  for start in range(0, num_reads, _MIXED_READS):
    reads = range(start, min(start + _MIXED_READS, num_reads))

    def mix_part(index, _, reads=reads):
      def add(mixed, slot):
        x = sweep.load_part(slot, index)
        weights = (numbers.tables[_WEIGHT, s, slot] for s in reads)
        return tuple(h + weight * x for h, weight in zip(mixed, weights, strict=True))

      mixed = (row_ops.zeros(groups)[0],) * len(reads)
      for slot in range(operands.num_slots):
        mixed = sweep.where_valid(slot, functools.partial(add, slot=slot), mixed)
      for s, h in zip(reads, mixed, strict=True):
        row_ops.store_part(out.at[s, token], index, h)

    lax.fori_loop(0, row_ops.num_parts(groups), mix_part, None)
