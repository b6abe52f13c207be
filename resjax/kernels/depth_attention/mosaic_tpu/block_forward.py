"""The forward kernel of phase 1 for TPUs: every source is loaded once, for all reads.

The matrix unit computes the dot products of sources with all queries, and the mixes: for a group of
tokens, the weights of all reads are a matrix [S · ROWS, N · ROWS], zero between different tokens.
"""

import functools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from resjax.kernels.depth_attention.mosaic_tpu.block_plan import (
  BlockPlan,
  matmul,
  matmul_transposed,
  over_slots,
)
from resjax.kernels.depth_attention.mosaic_tpu.call import launch, on_one_device, tiled
from resjax.kernels.depth_attention.mosaic_tpu.loops import Span
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS, SUBLANES
from resjax.kernels.depth_attention.operands import Field, Operands, Read, Ref, Stats
from resjax.typing import Array


class _Inputs(NamedTuple):
  queries: Field
  slots: tuple[Field, ...]


class _Outputs(NamedTuple):
  """Outputs [S, T, D], and statistics in the layout of block_plan.py."""

  out: Field
  inverse_rms: Field
  logits: Field
  lse: Field


@on_one_device
def forward(read: Read, operands: Operands) -> tuple[Array, Stats]:
  """Runs the forward pass, see reference/block.py."""
  plan = BlockPlan.of("forward", read, operands)
  sizes, rows, groups = plan.sizes, plan.padded_reads, plan.num_groups
  queries = plan.queries(operands.query)
  out = jax.ShapeDtypeStruct((plan.num_reads, sizes.num_tokens, sizes.width), plan.dtype)
  written = launch(
    read,
    partial(_kernel, plan),
    plan,
    "depth_attention_block_forward",
    operands.counts,
    inputs=_Inputs(tiled(queries, plan.whole_spec(len(queries))), plan.slots(operands)),
    outputs=_Outputs(
      tiled(out, plan.reads_spec()),
      plan.numbers(1, groups),
      plan.numbers(rows, groups),
      plan.numbers(rows, 1),
    ),
    cost=_cost(plan),
  )
  inverse_rms, logits, lse = map(plan.from_lanes, written[1:])
  reads, slots = plan.num_reads, sizes.num_slots
  return written.out, Stats(inverse_rms[0, :slots], logits[:reads, :slots], lse[:reads, 0])


def _cost(plan: BlockPlan) -> pl.CostEstimate:
  sizes = plan.sizes
  elements = sizes.num_tokens * sizes.width
  return pl.CostEstimate(
    flops=(4 * plan.num_reads + 2) * sizes.num_slots * elements,
    transcendentals=plan.num_reads * sizes.num_slots * sizes.num_tokens,
    bytes_accessed=(sizes.num_slots + plan.num_reads) * elements * plan.dtype.itemsize,
  )


def _kernel(
  plan: BlockPlan, counts: Ref, inputs: _Inputs, outputs: _Outputs, scratch: tuple[()]
) -> None:
  del scratch
  tile = plan.tile(pl.program_id(0), pl.program_id(1))
  plan.clear_empty_bank(counts, inputs.slots)
  plan.clear_rows_past_end(tile, inputs.slots)

  def run(index: Array, rows: Span) -> None:
    squares, dots = _reduce(plan, inputs, rows)
    weights = _softmax(plan, counts, squares, dots, outputs, index)
    _mix(plan, weights, inputs.slots, outputs.out, rows)

  plan.for_each_row_group(run)


def _reduce(plan: BlockPlan, inputs: _Inputs, rows: Span) -> tuple[list[Array], list[Array]]:
  """Returns mean(v²) [SUBLANES, LANES], all rows equal, and g · v [S, LANES], by group of slots."""
  groups, queries = range(plan.num_groups), inputs.queries

  def chunk(lanes: Span, sums: list) -> list:
    new = []
    for group, (squares, dots) in zip(groups, sums, strict=True):
      x = plan.slots_chunk(inputs.slots, group, rows, lanes)
      dots += matmul_transposed(queries[:, lanes], x)
      wide = x.astype(jnp.float32)
      for start in range(0, plan.chunk, LANES):
        squares += wide[:, start : start + LANES] ** 2
      new.append((squares, dots))
    return new

  zeros = jnp.zeros((LANES, LANES)), jnp.zeros((queries.shape[0], LANES))
  sums = plan.for_each_chunk(chunk, [zeros for _ in groups])
  # The product with constant rows sums over the lanes of each row, and has the result on lanes.
  mean = jnp.full((SUBLANES, LANES), 1 / plan.sizes.width, jnp.float32)
  squares = [matmul_transposed(mean, squares) for squares, _ in sums]
  return squares, [plan.sum_parts(dots) for _, dots in sums]


def _softmax(
  plan: BlockPlan,
  counts: Ref,
  squares: list[Array],
  dots: list[Array],
  outputs: _Outputs,
  index: Array,
) -> list[Array]:
  """Writes the statistics of a group of tokens; returns weights [S, LANES] by group of slots."""
  logits = []
  for group, (square, dot) in enumerate(zip(squares, dots, strict=True)):
    inverse_rms, lanes = lax.rsqrt(square + plan.eps)[:1], pl.ds(group * LANES, LANES)
    logit = jnp.where(plan.valid_slots(counts, group), dot * inverse_rms, -jnp.inf)
    outputs.inverse_rms[index, :, lanes] = inverse_rms
    outputs.logits[index, :, lanes] = logit
    logits.append(logit)
  top = over_slots(jnp.maximum, logits)
  total = over_slots(jnp.add, [jnp.exp(logit - top) for logit in logits])
  lse = top + jnp.log(total)
  outputs.lse[index] = lse
  return [jnp.exp(logit - lse) for logit in logits]


def _mix(
  plan: BlockPlan, weights: list[Array], slots: tuple[Ref, ...], out: Ref, rows: Span
) -> None:
  """Writes h_s = Σ_n P_sn v_n of a group of tokens."""
  diagonal, dtype = plan.diagonal(), plan.compute_dtype
  spread = [plan.block_diagonal(p, diagonal).astype(dtype) for p in weights]

  def chunk(lanes: Span, _: None) -> None:
    mixed = functools.reduce(
      jnp.add,
      (matmul(p, plan.slots_chunk(slots, group, rows, lanes)) for group, p in enumerate(spread)),
    )
    for s in range(plan.num_reads):
      out[s, rows, lanes] = mixed[s * ROWS : (s + 1) * ROWS].astype(out.dtype)

  plan.for_each_chunk(chunk)
