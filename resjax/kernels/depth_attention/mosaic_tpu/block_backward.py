"""The reverse kernel of phase 1 for TPUs: every source is loaded once, and no output is.

As in the forward kernel, the matrix unit does all that runs over channels: the dot products of the
sources with the cotangents of all reads, of which those within a token are kept; the cotangents of
the sources, from block-diagonal weights; and the cotangents of the queries, summed over tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from resjax.base import Array, PyTree
from resjax.kernels.depth_attention.mosaic_tpu import source_cotangents
from resjax.kernels.depth_attention.mosaic_tpu.block_plan import (
  SLOTS,
  BlockPlan,
  matmul,
  matmul_transposed,
  of_group,
  over_slots,
)
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.kernels.mosaic_tpu import ROWS, Span, call
from resjax.kernels.operation import LANES, Field, Ref


class _Numbers(NamedTuple):
  """Numbers in the layout of block_plan.py; the logit of a slot that does not count is 0."""

  inverse_rms: Field
  weights: Field
  logits: Field
  d_lse: Field


class _Inputs(NamedTuple):
  queries: Field
  numbers: _Numbers
  slots: tuple[Field, ...]
  d_out: Field
  d_sources: source_cotangents.SourceCotangents


@call.on_one_device
def backward(
  read: Read, operands: Operands, stats: Stats, d_out: Array, d_lse: Array, d_sources: PyTree
) -> Cotangents:
  """Runs the reverse pass, see reference/block.py."""
  plan = BlockPlan.of("backward", read, operands)
  sizes = plan.sizes
  numbers, queries = _numbers(plan, stats, d_lse), plan.queries(operands.query)
  sums, reads, slots = (plan.padded_reads, sizes.width), plan.num_reads, sizes.num_slots
  outputs = Cotangents(
    *source_cotangents.outputs_of(plan),
    call.tiled(
      jax.ShapeDtypeStruct((plan.grid[0], *sums), jnp.float32),
      pl.BlockSpec((None, *sums), lambda p, i, _: (p, 0, 0)),
    ),
    None,
  )
  written = call.launch(
    read,
    _Kernel,
    plan,
    "depth_attention_block_backward",
    operands.counts,
    inputs=_Inputs(
      call.tiled(queries, plan.whole_spec(len(queries))),
      numbers,
      plan.slots(operands),
      call.tiled(d_out, plan.reads_spec()),
      source_cotangents.inputs_of(plan, operands, d_sources),
    ),
    outputs=outputs,
    cost=plan.cost((8 * reads + 4) * slots, 0, (2 + read.threaded) * slots + reads),
    scratch=source_cotangents.scratch_shapes(plan),
    updates=plan.updates(read.interpret),
  )
  d_query = jnp.sum(written.query, axis=0)[: plan.num_reads]
  return source_cotangents.without_padding(plan, written)._replace(query=d_query)


def _numbers(plan: BlockPlan, stats: Stats, d_lse: Array) -> _Numbers:
  """Returns the kernel's numbers per token and slot, made of the statistics and d_lse."""
  reads, groups = plan.padded_reads, plan.num_groups
  weights = jnp.exp(stats.logits - stats.lse[:, None])
  logits = jnp.where(weights > 0, stats.logits, 0)
  d_lse = jnp.broadcast_to(d_lse[:, None], (plan.num_reads, SLOTS, plan.sizes.num_tokens))
  weights, logits, d_lse = (plan.to_lanes(x, reads) for x in (weights, logits, d_lse))
  return _Numbers(
    plan.numbers(1, groups, plan.to_lanes(stats.inverse_rms[None], 1)),
    plan.numbers(reads, groups, weights),
    plan.numbers(reads, groups, logits),
    plan.numbers(reads, 1, d_lse),
  )


class _Kernel(call.TileKernel[BlockPlan, _Inputs, Cotangents, source_cotangents.BankScratch]):
  def run(self) -> None:
    """Writes the cotangents of a tile, one group of tokens at a time."""
    plan, inputs, outputs, step = self.plan, self.inputs, self.outputs, pl.program_id(1)
    tile = plan.tile(pl.program_id(0), step)
    refs = inputs.d_sources, outputs, self.scratch
    tiles = source_cotangents.CotangentTiles(plan, self.counts[0], tile, step, *refs)
    tiles.begin()
    plan.clear_empty_bank(self.counts, inputs.slots)
    d_reads = [inputs.d_out.at[s] for s in range(plan.num_reads)]
    plan.clear_rows_past_end(tile, [*inputs.slots, *d_reads])

    @pl.when(step == 0)
    def _() -> None:
      outputs.query[...] = jnp.zeros_like(outputs.query)

    tiles.wait_until_read()
    old, new = tiles.old(), tiles.new()

    def run(index: Array, rows: Span) -> None:
      numbers = _Numbers(*(ref[index] for ref in inputs.numbers))
      d_dots, shrinks = self._d_dots(numbers, self._scores(rows))
      self._write(numbers.weights, d_dots, shrinks, old, new, rows)

    plan.for_each_row_group(run)
    tiles.end()

  def _d_mixed(self, rows: Span, lanes: Span) -> Array:
    """Returns a chunk [S · ROWS, chunk] of the cotangents of all reads."""
    reads = [self.inputs.d_out[s, rows, lanes] for s in range(self.plan.num_reads)]
    return jnp.concatenate(reads).astype(self.plan.compute_dtype)

  def _scores(self, rows: Span) -> list[Array]:
    """Returns ⟨dh_s, v_n⟩ of a group of tokens, [S, LANES] by group of slots."""
    plan, slots = self.plan, self.inputs.slots
    groups, diagonal = range(plan.num_groups), plan.diagonal()

    def chunk(lanes: Span, sums: list[Array]) -> list[Array]:
      d_mixed = self._d_mixed(rows, lanes)
      chunks = (plan.slots_chunk(slots, group, rows, lanes) for group in groups)
      return [s + matmul_transposed(d_mixed, x) for s, x in zip(sums, chunks, strict=True)]

    zeros = jnp.zeros((plan.num_reads * ROWS, LANES), jnp.float32)
    missing = plan.padded_reads - plan.num_reads
    scores = []
    for products in plan.for_each_chunk(chunk, [zeros for _ in groups]):
      within = jnp.where(diagonal, products, 0).reshape(plan.num_reads, ROWS, LANES)
      scores.append(jnp.pad(jnp.sum(within, axis=1), ((0, missing), (0, 0))))
    return scores

  def _d_dots(self, numbers: _Numbers, scores: list[Array]) -> tuple[list[Array], list[Array]]:
    """Returns ds r [S, LANES] and Σ_s ds s r² / D [1, LANES], by group of slots."""
    inverse_rms, weights, logits, d_lse = numbers
    parts = [slice(group * LANES, (group + 1) * LANES) for group in range(self.plan.num_groups)]
    pairs = zip(parts, scores, strict=True)
    centre = over_slots(jnp.add, [weights[:, part] * score for part, score in pairs]) - d_lse
    d_dots, shrinks = [], []
    for part, score in zip(parts, scores, strict=True):
      d_dot = weights[:, part] * (score - centre) * inverse_rms[:, part]
      total = jnp.sum(d_dot * logits[:, part], axis=0, keepdims=True)
      d_dots.append(d_dot)
      shrinks.append(total * inverse_rms[:, part] / self.plan.sizes.width)
    return d_dots, shrinks

  def _write(
    self,
    weights: Array,
    d_dots: list[Array],
    shrinks: list[Array],
    old: tuple[Ref, ...],
    new: tuple[Ref, ...],
    rows: Span,
  ) -> None:
    """Writes the cotangents of sources, the old ones added; adds to the cotangents of queries."""
    plan, inputs, diagonal = self.plan, self.inputs, self.plan.diagonal()
    copies, left, columns = len(inputs.queries) // plan.padded_reads, [], []
    for group, d_dot in enumerate(d_dots):
      spread = plan.block_diagonal(weights[:, group * LANES : (group + 1) * LANES], diagonal)
      left.append(jnp.concatenate([spread, *[d_dot] * copies]).T.astype(plan.compute_dtype))
      columns.append(jnp.broadcast_to(shrinks[group], (LANES, LANES)).T)
    d_dots = [_parts(plan, d_dot) for d_dot in d_dots]

    def chunk(lanes: Span, _: None) -> None:
      right = jnp.concatenate([self._d_mixed(rows, lanes), inputs.queries[:, lanes]])
      d_query: Array | float = 0.0
      for group, d_dot in enumerate(d_dots):
        x = plan.slots_chunk(inputs.slots, group, rows, lanes)
        shrink = jnp.concatenate([columns[group]] * (plan.chunk // LANES), axis=1)
        d_x = matmul(left[group], right) - shrink * x.astype(jnp.float32)
        d_query += plan.sum_parts(matmul(d_dot, x))
        for k, ref in enumerate(of_group(new, group)):
          d_slot = d_x[k * ROWS : (k + 1) * ROWS]
          if old:
            d_slot += old[group * SLOTS + k][rows, lanes].astype(jnp.float32)
          ref[rows, lanes] = d_slot.astype(ref.dtype)
      self.outputs.query[:, lanes] += d_query

    plan.for_each_chunk(chunk)


def _parts(plan: BlockPlan, x: Array) -> Array:
  """Returns x as rows for the matrix unit: in bfloat16 two parts that add up to it."""
  if plan.compute_dtype == jnp.float32:
    return x
  high = x.astype(jnp.bfloat16)
  return jnp.concatenate([high, (x - high.astype(jnp.float32)).astype(jnp.bfloat16)])
