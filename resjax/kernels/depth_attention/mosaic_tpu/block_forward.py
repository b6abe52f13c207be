"""The forward kernel of phase 1 for TPUs: every source is read once, for all reads.

The matrix unit takes the dot products with all queries, and mixes: for a group of tokens the
weights of all reads are a matrix [S · ROWS, N · ROWS] that is zero between different tokens.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention.mosaic_tpu import tiles
from resjax.kernels.depth_attention.mosaic_tpu.block_plan import (
  BlockPlan,
  matmul,
  matmul_transposed,
  over_slots,
)
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS, SUBLANES
from resjax.kernels.depth_attention.operands import Operands, Read
from resjax.typing import Array


def forward(read: Read, operands: Operands, plan: BlockPlan) -> tuple[Array, ...]:
  """Runs the kernel on the rows of one device.

  Returns:
    Outputs [S, T, D]; on the lanes of the plan inverse RMS [.., 1, ..], logits and lse [.., S, ..].
  """
  queries = plan.queries(operands.query)
  banked = [] if operands.bank is None else [operands.bank] * len(operands.bank)
  out = jax.ShapeDtypeStruct((plan.num_reads, plan.work.num_tokens, plan.work.width), plan.dtype)
  rows, groups = plan.padded_reads, plan.num_groups
  lanes = (1, groups), (rows, groups), (rows, 1)
  call = pl.pallas_call(
    partial(_kernel, plan),
    out_shape=[out, *[plan.lanes_shape(*sizes) for sizes in lanes]],
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=plan.grid,
      in_specs=[plan.whole_spec(len(queries)), *plan.slot_specs()],
      out_specs=[plan.reads_spec(), *[plan.lanes_spec(*sizes) for sizes in lanes]],
    ),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=tiles.vmem_limit(plan.work)
    ),
    cost_estimate=_cost(plan),
    interpret=read.interpret,
    name="depth_attention_block_forward",
  )
  return tuple(call(operands.counts, queries, *banked, *operands.recent))


def _cost(plan: BlockPlan) -> pl.CostEstimate:
  elements = plan.work.num_tokens * plan.work.width
  return pl.CostEstimate(
    flops=(4 * plan.num_reads + 2) * plan.work.num_slots * elements,
    transcendentals=plan.num_reads * plan.work.num_slots * plan.work.num_tokens,
    bytes_accessed=(plan.work.num_slots + plan.num_reads) * elements * plan.dtype.itemsize,
  )


def _kernel(plan: BlockPlan, counts, queries, *refs):
  slots, (out, *stats) = refs[: plan.work.num_slots], refs[plan.work.num_slots :]
  tile = plan.tile(pl.program_id(0), pl.program_id(1))
  plan.clear_empty_bank(counts, slots)
  plan.clear_rows_past_end(tile, slots)

  def run(index, rows):
    squares, dots = _reduce(plan, queries, slots, rows)
    weights = _softmax(plan, counts, squares, dots, stats, index)
    _mix(plan, weights, slots, out, rows)

  plan.for_each_row_group(run)


def _reduce(plan: BlockPlan, queries, slots, rows) -> tuple[list[Array], list[Array]]:
  """Returns mean(v²) [SUBLANES, LANES], all rows the same, and g · v [S, LANES], by group."""
  groups = range(plan.num_groups)

  def chunk(lanes, sums):
    new = []
    for group, (squares, dots) in zip(groups, sums, strict=True):
      x = plan.slots_chunk(slots, group, rows, lanes)
      dots += matmul_transposed(queries[:, lanes], x)
      wide = x.astype(jnp.float32)
      for start in range(0, plan.chunk, LANES):
        squares += wide[:, start : start + LANES] ** 2
      new.append((squares, dots))
    return new

  zeros = jnp.zeros((LANES, LANES)), jnp.zeros((queries.shape[0], LANES))
  sums = plan.for_each_chunk(chunk, [zeros for _ in groups])
  # Sums over lanes, the result on lanes.
  mean = jnp.full((SUBLANES, LANES), 1 / plan.work.width, jnp.float32)
  squares = [matmul_transposed(mean, squares) for squares, _ in sums]
  return squares, [plan.sum_parts(dots) for _, dots in sums]


def _softmax(plan: BlockPlan, counts, squares, dots, stats, index) -> list[Array]:
  """Writes the statistics of a group of tokens; returns the weights [S, LANES] by group."""
  inverse_rms_ref, logits_ref, lse_ref = stats
  logits = []
  for group, (square, dot) in enumerate(zip(squares, dots, strict=True)):
    inverse_rms, lanes = lax.rsqrt(square + plan.eps)[:1], pl.ds(group * LANES, LANES)
    logit = jnp.where(plan.valid_slots(counts, group), dot * inverse_rms, -jnp.inf)
    inverse_rms_ref[index, :, lanes] = inverse_rms
    logits_ref[index, :, lanes] = logit
    logits.append(logit)
  top = over_slots(jnp.maximum, logits)
  total = over_slots(jnp.add, [jnp.exp(logit - top) for logit in logits])
  lse = top + jnp.log(total)
  lse_ref[index] = lse
  return [jnp.exp(logit - lse) for logit in logits]


def _mix(plan: BlockPlan, weights: list[Array], slots, out, rows) -> None:
  """Writes h_s = Σ_n P_sn v_n of a group of tokens."""
  diagonal, dtype = plan.diagonal(), plan.compute_dtype
  spread = [plan.block_diagonal(p, diagonal).astype(dtype) for p in weights]

  def chunk(lanes, _):
    mixed = sum(
      matmul(p, plan.slots_chunk(slots, group, rows, lanes)) for group, p in enumerate(spread)
    )
    for s in range(plan.num_reads):
      out[s, rows, lanes] = mixed[s * ROWS : (s + 1) * ROWS].astype(out.dtype)

  plan.for_each_chunk(chunk)
