"""The reverse kernel of phase 1 for TPUs: every source is loaded once, and no output is.

As in the forward kernel, the matrix unit does all that runs over channels: the dot products of the
sources with the cotangents of all reads, of which those within a token are kept; the cotangents of
the sources, from block-diagonal weights; and those of the queries, summed on the chip over tokens.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from resjax.kernels.depth_attention.mosaic_tpu import bank
from resjax.kernels.depth_attention.mosaic_tpu.bank import BankScratch, BankTiles
from resjax.kernels.depth_attention.mosaic_tpu.block_plan import (
  SLOTS,
  BlockPlan,
  matmul,
  matmul_transposed,
  of_group,
  over_slots,
)
from resjax.kernels.depth_attention.mosaic_tpu.call import launch, on_one_device, tiled
from resjax.kernels.depth_attention.mosaic_tpu.loops import Span
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS
from resjax.kernels.depth_attention.operands import Cotangents, Field, Operands, Read, Ref, Stats
from resjax.typing import Array, PyTree


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
  d_recent: tuple[Field, ...]
  d_bank: Field


class _Outputs(NamedTuple):
  d_recent: tuple[Field, ...]
  d_bank: Field
  query: Field


@on_one_device
def backward(
  read: Read, operands: Operands, stats: Stats, d_out: Array, d_lse: Array, d_sources: PyTree
) -> Cotangents:
  """Runs the reverse pass, see reference/block.py."""
  plan, (d_bank, d_recent) = BlockPlan.of("backward", read, operands), d_sources or (None, ())
  sizes, tokens = plan.sizes, plan.tokens_spec()
  numbers, queries = _numbers(plan, stats, d_lse), plan.queries(operands.query)
  sums = (plan.padded_reads, sizes.width)
  outputs = _Outputs(
    (tiled(plan.source_shape(), tokens),) * sizes.num_recent,
    bank.output_of(plan),
    tiled(
      jax.ShapeDtypeStruct((plan.grid[0], *sums), jnp.float32),
      pl.BlockSpec((None, *sums), lambda p, i, _: (p, 0, 0)),
    ),
  )
  written = launch(
    read,
    partial(_kernel, plan),
    plan,
    "depth_attention_block_backward",
    operands.counts,
    inputs=_Inputs(
      tiled(queries, plan.whole_spec(len(queries))),
      numbers,
      plan.slots(operands),
      tiled(d_out, plan.reads_spec()),
      tuple(tiled(d, tokens) for d in d_recent),
      bank.input_of(plan, operands.bank, d_bank),
    ),
    outputs=outputs,
    cost=_cost(plan),
    scratch=bank.scratch_shapes(plan),
    updates=plan.updates(read.interpret),
  )
  d_bank = None if written.d_bank is None else written.d_bank[:, : sizes.num_tokens]
  d_query = jnp.sum(written.query, axis=0)[: plan.num_reads]
  return Cotangents(d_bank, written.d_recent, d_query, None)


def _numbers(plan: BlockPlan, stats: Stats, d_lse: Array) -> _Numbers:
  """Returns what the kernel needs of the statistics, and d_lse once per slot."""
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


def _cost(plan: BlockPlan) -> pl.CostEstimate:
  elements, slots = plan.sizes.num_tokens * plan.sizes.width, plan.sizes.num_slots
  arrays = (3 if plan.sizes.threaded else 2) * slots + plan.num_reads
  return pl.CostEstimate(
    flops=(8 * plan.num_reads + 4) * slots * elements,
    transcendentals=0,
    bytes_accessed=arrays * elements * plan.dtype.itemsize,
  )


def _kernel(
  plan: BlockPlan, counts: Ref, inputs: _Inputs, outputs: _Outputs, scratch: BankScratch
) -> None:
  step = pl.program_id(1)
  tile = plan.tile(pl.program_id(0), step)
  bank_tiles = BankTiles(plan, counts[0], tile, step, inputs.d_bank, outputs.d_bank, scratch)
  bank_tiles.begin()
  plan.clear_empty_bank(counts, inputs.slots)
  d_reads = [inputs.d_out.at[s] for s in range(plan.num_reads)]
  plan.clear_rows_past_end(tile, [*inputs.slots, *d_reads])

  @pl.when(step == 0)
  def _() -> None:
    outputs.query[...] = jnp.zeros_like(outputs.query)

  bank_tiles.wait_until_read()
  new = (*bank_tiles.tiles(), *outputs.d_recent)
  old = (*bank_tiles.tiles(), *inputs.d_recent) if plan.sizes.threaded else ()

  def run(index: Array, rows: Span) -> None:
    numbers = _Numbers(*(ref[index] for ref in inputs.numbers))
    scores = _scores(plan, inputs, rows)
    d_dots, shrinks = _d_dots(plan, numbers, scores)
    _write(plan, inputs, outputs, old, new, (numbers.weights, d_dots, shrinks), rows)

  plan.for_each_row_group(run)
  bank_tiles.end()


def _scores(plan: BlockPlan, inputs: _Inputs, rows: Span) -> list[Array]:
  """Returns ⟨dh_s, v_n⟩ of a group of tokens, [S, LANES] by group of slots."""
  groups, diagonal = range(plan.num_groups), plan.diagonal()

  def chunk(lanes: Span, sums: list[Array]) -> list[Array]:
    d_mixed = _d_mixed(plan, inputs, rows, lanes)
    chunks = (plan.slots_chunk(inputs.slots, group, rows, lanes) for group in groups)
    return [s + matmul_transposed(d_mixed, x) for s, x in zip(sums, chunks, strict=True)]

  zeros = jnp.zeros((plan.num_reads * ROWS, LANES), jnp.float32)
  missing = plan.padded_reads - plan.num_reads
  scores = []
  for products in plan.for_each_chunk(chunk, [zeros for _ in groups]):
    within = jnp.where(diagonal, products, 0).reshape(plan.num_reads, ROWS, LANES)
    scores.append(jnp.pad(jnp.sum(within, axis=1), ((0, missing), (0, 0))))
  return scores


def _d_mixed(plan: BlockPlan, inputs: _Inputs, rows: Span, lanes: Span) -> Array:
  """Returns a chunk [S · ROWS, chunk] of the cotangents of all reads."""
  reads = [inputs.d_out[s, rows, lanes] for s in range(plan.num_reads)]
  return jnp.concatenate(reads).astype(plan.compute_dtype)


def _d_dots(
  plan: BlockPlan, numbers: _Numbers, scores: list[Array]
) -> tuple[list[Array], list[Array]]:
  """Returns ds r [S, LANES] and Σ_s ds s r² / D [1, LANES], by group of slots."""
  inverse_rms, weights, logits, d_lse = numbers
  parts = [slice(group * LANES, (group + 1) * LANES) for group in range(plan.num_groups)]
  pairs = zip(parts, scores, strict=True)
  centre = over_slots(jnp.add, [weights[:, part] * score for part, score in pairs]) - d_lse
  d_dots, shrinks = [], []
  for part, score in zip(parts, scores, strict=True):
    d_dot = weights[:, part] * (score - centre) * inverse_rms[:, part]
    total = jnp.sum(d_dot * logits[:, part], axis=0, keepdims=True)
    d_dots.append(d_dot)
    shrinks.append(total * inverse_rms[:, part] / plan.sizes.width)
  return d_dots, shrinks


def _write(
  plan: BlockPlan,
  inputs: _Inputs,
  outputs: _Outputs,
  old: tuple[Ref, ...],
  new: tuple[Ref, ...],
  factors: tuple[Array, list[Array], list[Array]],
  rows: Span,
) -> None:
  """Writes the cotangents of sources, the old ones added; adds to the cotangents of the queries.

  Args:
    plan: tiles.
    inputs: references.
    outputs: references.
    old: references of the cotangents that later reads left, by slot; empty if there are none.
    new: references of the cotangents of sources, by slot.
    factors: weights [S, groups of slots · LANES]; and what `_d_dots` returns.
    rows: the group of tokens.
  """
  weights, d_dots, shrinks = factors
  copies, diagonal = len(inputs.queries) // plan.padded_reads, plan.diagonal()
  left, columns = [], []
  for group, d_dot in enumerate(d_dots):
    spread = plan.block_diagonal(weights[:, group * LANES : (group + 1) * LANES], diagonal)
    left.append(jnp.concatenate([spread, *[d_dot] * copies]).T.astype(plan.compute_dtype))
    columns.append(jnp.broadcast_to(shrinks[group], (LANES, LANES)).T)
  d_dots = [_parts(plan, d_dot) for d_dot in d_dots]

  def chunk(lanes: Span, _: None) -> None:
    right = jnp.concatenate([_d_mixed(plan, inputs, rows, lanes), inputs.queries[:, lanes]])
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
    outputs.query[:, lanes] += d_query

  plan.for_each_chunk(chunk)


def _parts(plan: BlockPlan, x: Array) -> Array:
  """Returns x as rows for the matrix unit: in bfloat16 two parts that add up to it."""
  if plan.compute_dtype == jnp.float32:
    return x
  high = x.astype(jnp.bfloat16)
  return jnp.concatenate([high, (x - high.astype(jnp.float32)).astype(jnp.bfloat16)])
