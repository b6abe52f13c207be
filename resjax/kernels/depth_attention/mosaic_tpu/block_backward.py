"""The reverse kernel of phase 1 for TPUs: reads nothing that was mixed, every source once.

As in the forward kernel the matrix unit does what runs over channels: dot products of the sources
with the cotangents of all reads, of which those within a token are kept; the cotangents of the
sources, from block-diagonal weights; and those of the queries, summed on the chip over all tokens.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention.mosaic_tpu import tiles
from resjax.kernels.depth_attention.mosaic_tpu.bank import BankTiles
from resjax.kernels.depth_attention.mosaic_tpu.block_plan import (
  SLOTS,
  BlockPlan,
  matmul,
  matmul_transposed,
  of_group,
  over_slots,
)
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read
from resjax.typing import Array, PyTree


class _Inputs(NamedTuple):
  """Arrays, their specs, or references to tiles of them.

  `numbers`: inverse RMS, weights, logits (0 where a slot does not count), d_lse; on lanes.
  """

  queries: Any
  numbers: tuple
  slots: tuple
  d_out: Any
  d_recent: tuple
  d_bank: Any


class _Outputs(NamedTuple):
  d_recent: tuple
  d_bank: Any
  query: Any


def backward(
  read: Read,
  operands: Operands,
  plan: BlockPlan,
  numbers: list[Array],
  d_out: Array,
  d_sources: PyTree,
) -> Cotangents:
  """Runs the kernel on the rows of one device; see reference/block.py."""
  inputs = _inputs(operands, plan, numbers, d_out, d_sources)
  outputs = _output_shapes(plan)
  d_bank, semaphores = BankTiles.scratch_shapes(plan, read.threaded)
  scratch = [] if d_bank is None else [d_bank, semaphores]
  call = pl.pallas_call(
    partial(_kernel, plan, read.threaded),
    out_shape=(outputs,),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=plan.grid,
      in_specs=(_input_specs(plan, inputs),),
      out_specs=(_output_specs(plan, outputs),),
      scratch_shapes=scratch,
    ),
    input_output_aliases=_aliases(read, plan, inputs, outputs),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"),
      vmem_limit_bytes=tiles.vmem_limit(plan.work),
    ),
    cost_estimate=_cost(plan),
    interpret=read.interpret,
    name="depth_attention_block_backward",
  )
  (got,) = call(operands.counts, inputs)
  d_bank = None if got.d_bank is None else got.d_bank[:, : plan.work.num_tokens]
  d_query = jnp.sum(got.query, axis=0)[: plan.num_reads]
  return Cotangents(d_bank, got.d_recent, d_query, None)


def _inputs(operands: Operands, plan: BlockPlan, numbers, d_out: Array, d_sources) -> _Inputs:
  bank, (d_bank, d_recent) = operands.bank, d_sources or (None, ())
  if bank is not None:
    # What is copied by hand consists of whole registers.
    rest = -plan.work.num_tokens % ROWS
    d_bank = jnp.zeros_like(bank) if d_bank is None else d_bank
    d_bank = jnp.pad(d_bank, ((0, 0), (0, rest), (0, 0))) if rest else d_bank
  banked = () if bank is None else (bank,) * len(bank)
  slots = (*banked, *operands.recent)
  return _Inputs(
    plan.queries(operands.query), tuple(numbers), slots, d_out, tuple(d_recent), d_bank
  )


def _input_specs(plan: BlockPlan, inputs: _Inputs) -> _Inputs:
  reads, groups = plan.padded_reads, plan.num_groups
  sizes = (1, groups), (reads, groups), (reads, groups), (reads, 1)
  return _Inputs(
    plan.whole_spec(len(inputs.queries)),
    tuple(plan.lanes_spec(*size) for size in sizes),
    plan.slot_specs(),
    plan.reads_spec(),
    (plan.tokens_spec(),) * len(inputs.d_recent),
    None if inputs.d_bank is None else pl.BlockSpec(memory_space=pl.ANY),
  )


def _output_shapes(plan: BlockPlan) -> _Outputs:
  work, bank = plan.work, None
  tokens = jax.ShapeDtypeStruct((work.num_tokens, work.width), plan.dtype)
  if work.num_banked:
    padded = work.num_tokens + -work.num_tokens % ROWS
    bank = jax.ShapeDtypeStruct((work.num_banked, padded, work.width), plan.dtype)
  query = jax.ShapeDtypeStruct((plan.grid[0], plan.padded_reads, work.width), jnp.float32)
  return _Outputs((tokens,) * work.num_recent, bank, query)


def _output_specs(plan: BlockPlan, outputs: _Outputs) -> _Outputs:
  shape = None, plan.padded_reads, plan.work.width
  return _Outputs(
    (plan.tokens_spec(),) * plan.work.num_recent,
    None if outputs.d_bank is None else pl.BlockSpec(memory_space=pl.ANY),
    pl.BlockSpec(shape, lambda p, i, _: (p, 0, 0)),
  )


def _aliases(read: Read, plan: BlockPlan, inputs: _Inputs, outputs: _Outputs) -> dict[int, int]:
  """Which flat input (counts are the first) becomes which flat output."""
  num_recent, num_inputs = len(inputs.d_recent), len(jax.tree.leaves(inputs))
  has_bank = inputs.d_bank is not None
  aliases = {num_inputs: len(outputs.d_recent)} if has_bank else {}
  # The interpreter returns what is aliased with the rows past the end of the last tile.
  if not (read.interpret and plan.work.num_tokens % plan.tiles.tokens):
    first = 1 + num_inputs - has_bank - num_recent
    aliases |= {first + k: k for k in range(num_recent)}
  return aliases


def _cost(plan: BlockPlan) -> pl.CostEstimate:
  elements, slots = plan.work.num_tokens * plan.work.width, plan.work.num_slots
  arrays = (3 if plan.work.threaded else 2) * slots + plan.num_reads
  return pl.CostEstimate(
    flops=(8 * plan.num_reads + 4) * slots * elements,
    transcendentals=0,
    bytes_accessed=arrays * elements * plan.dtype.itemsize,
  )


def _kernel(plan: BlockPlan, threaded: bool, counts, inputs: _Inputs, outputs: _Outputs, *scratch):
  step = pl.program_id(1)
  tile = plan.tile(pl.program_id(0), step)
  buffers, semaphores = scratch or (None, None)
  bank = BankTiles(
    plan, threaded, counts[0], tile, step, inputs.d_bank, outputs.d_bank, buffers, semaphores
  )
  bank.begin()
  plan.clear_empty_bank(counts, inputs.slots)
  d_reads = [inputs.d_out.at[s] for s in range(plan.num_reads)]
  plan.clear_rows_past_end(tile, [*inputs.slots, *d_reads])

  @pl.when(step == 0)
  def _():
    outputs.query[...] = jnp.zeros_like(outputs.query)

  bank.wait_until_read()
  new = (*bank.tiles(), *outputs.d_recent)
  old = (*bank.tiles(), *inputs.d_recent) if threaded else None

  def run(index, rows):
    numbers = [ref[index] for ref in inputs.numbers]
    scores = _scores(plan, inputs, rows)
    d_dots, shrinks = _d_dots(plan, numbers, scores)
    _write(plan, inputs, outputs, (old, new), (numbers[1], d_dots, shrinks), rows)

  plan.for_each_row_group(run)
  bank.end()


def _scores(plan: BlockPlan, inputs: _Inputs, rows) -> list[Array]:
  """Returns ⟨dh_s, v_n⟩ of a group of tokens, [S, LANES] by group of slots."""
  groups, diagonal = range(plan.num_groups), plan.diagonal()

  def chunk(lanes, sums):
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


def _d_mixed(plan: BlockPlan, inputs: _Inputs, rows, lanes) -> Array:
  """Returns a chunk [S · ROWS, chunk] of the cotangents of all reads."""
  reads = [inputs.d_out[s, rows, lanes] for s in range(plan.num_reads)]
  return jnp.concatenate(reads).astype(plan.compute_dtype)


def _d_dots(plan: BlockPlan, numbers, scores) -> tuple[list[Array], list[Array]]:
  """Returns ds r [S, LANES] and Σ_s ds s r² / D [1, LANES] by group of slots."""
  inverse_rms, weights, logits, d_lse = numbers
  parts = [slice(group * LANES, (group + 1) * LANES) for group in range(plan.num_groups)]
  pairs = zip(parts, scores, strict=True)
  centre = over_slots(jnp.add, [weights[:, part] * score for part, score in pairs]) - d_lse
  d_dots, shrinks = [], []
  for part, score in zip(parts, scores, strict=True):
    d_dot = weights[:, part] * (score - centre) * inverse_rms[:, part]
    total = jnp.sum(d_dot * logits[:, part], axis=0, keepdims=True)
    d_dots.append(d_dot)
    shrinks.append(total * inverse_rms[:, part] / plan.work.width)
  return d_dots, shrinks


def _write(plan: BlockPlan, inputs: _Inputs, outputs: _Outputs, d_refs, factors, rows) -> None:
  """Writes the cotangents of sources, and adds to those of the queries."""
  (old, new), (weights, d_dots, shrinks) = d_refs, factors
  copies, diagonal = len(inputs.queries) // plan.padded_reads, plan.diagonal()
  left, columns = [], []
  for group, d_dot in enumerate(d_dots):
    spread = plan.block_diagonal(weights[:, group * LANES : (group + 1) * LANES], diagonal)
    left.append(jnp.concatenate([spread, *[d_dot] * copies]).T.astype(plan.compute_dtype))
    columns.append(jnp.broadcast_to(shrinks[group], (LANES, LANES)).T)
  d_dots = [_parts(plan, d_dot) for d_dot in d_dots]

  def chunk(lanes, _):
    right = jnp.concatenate([_d_mixed(plan, inputs, rows, lanes), inputs.queries[:, lanes]])
    d_query = 0.0
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
  """Returns rows for the matrix unit that add up to x."""
  if plan.compute_dtype == jnp.float32:
    return x
  high = x.astype(jnp.bfloat16)
  return jnp.concatenate([high, (x - high.astype(jnp.float32)).astype(jnp.bfloat16)])
