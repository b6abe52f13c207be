"""The backward kernel of depth attention for TPUs: every source and cotangent is moved once.

As in the forward kernel all N tiles of a tile of tokens lie in on-chip memory, so h is mixed again
where a norm follows it. The cotangents of query and output gain are summed in on-chip memory over
all tiles. Where sources are threaded their cotangents are added to in place.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention.mosaic_tpu import direct_plan, tiles
from resjax.kernels.depth_attention.mosaic_tpu.bank import BankTiles
from resjax.kernels.depth_attention.mosaic_tpu.direct_backward_tile import (
  Inputs,
  Outputs,
  Scratch,
  kernel,
)
from resjax.kernels.depth_attention.mosaic_tpu.direct_plan import Plan
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS, SUBLANES
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.typing import Array, PyTree


def backward(
  read: Read, plan: Plan, operands: Operands, stats: Stats, d_out: Array, d_sources: PyTree
) -> Cotangents:
  """Runs the kernel on the rows of one device; see reference/direct.py."""
  inputs = _inputs(read, operands, plan, stats, d_out, d_sources)
  outputs = _output_shapes(plan, operands)
  call = pl.pallas_call(
    partial(kernel, plan, read.threaded),
    out_shape=(outputs,),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=plan.grid,
      in_specs=(_input_specs(plan, inputs),),
      out_specs=(_output_specs(plan, outputs),),
      scratch_shapes=(_scratch_shapes(plan, read.threaded),),
    ),
    input_output_aliases=_aliases(read, plan, inputs, outputs),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"),
      vmem_limit_bytes=tiles.vmem_limit(plan.work),
    ),
    cost_estimate=_cost(plan, read.threaded, inputs, outputs),
    interpret=read.interpret,
    name="depth_attention_backward",
  )
  (got,) = call(operands.counts, inputs)
  d_bank = None if got.d_bank is None else got.d_bank[:, : plan.work.num_tokens]
  d_scale = None if got.out_norm_scale is None else jnp.sum(got.out_norm_scale, axis=0)
  return Cotangents(d_bank, got.d_recent, jnp.sum(got.query, axis=0), d_scale)


def _inputs(read: Read, operands: Operands, plan: Plan, stats: Stats, d_out, d_sources) -> Inputs:
  bank, scale, (d_bank, d_recent) = operands.bank, operands.out_norm_scale, d_sources or (None, ())
  if bank is not None:
    # What is copied by hand consists of whole registers.
    rest = (0, -plan.work.num_tokens % ROWS)
    d_bank = jnp.zeros_like(bank) if d_bank is None else d_bank
    d_bank = jnp.pad(d_bank, ((0, 0), rest, (0, 0))) if rest[1] else d_bank
  padded = Stats(*(direct_plan.pad_tokens(jnp.atleast_2d(s), plan) for s in stats))
  banked = () if bank is None else (bank,) * len(bank)
  return Inputs(
    direct_plan.spread_rows(operands.query),
    None if scale is None else direct_plan.spread_rows(scale),
    padded,
    (*banked, *operands.recent),
    d_out,
    d_recent,
    d_bank,
  )


def _input_specs(plan: Plan, inputs: Inputs) -> Inputs:
  tokens, slots = plan.tokens_spec(), plan.stats_spec(plan.work.num_slots)
  return Inputs(
    plan.row_spec(),
    None if inputs.out_norm_scale is None else plan.row_spec(),
    Stats(slots, slots, plan.stats_spec(1)),
    plan.slot_specs(),
    tokens,
    (tokens,) * len(inputs.d_recent),
    None if inputs.d_bank is None else pl.BlockSpec(memory_space=pl.ANY),
  )


def _output_shapes(plan: Plan, operands: Operands) -> Outputs:
  def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)

  work, bank = plan.work, None
  tokens = shape(work.num_tokens, work.width, dtype=work.dtype)
  if work.num_banked:
    padded = work.num_tokens + -work.num_tokens % ROWS
    bank = shape(work.num_banked, padded, work.width, dtype=work.dtype)
  row = shape(plan.grid[0] * SUBLANES, work.width)
  return Outputs(
    (tokens,) * work.num_recent,
    bank,
    row,
    None if operands.out_norm_scale is None else row,
  )


def _output_specs(plan: Plan, outputs: Outputs) -> Outputs:
  row = pl.BlockSpec((SUBLANES, plan.work.width), lambda p, i, _: (p, 0))
  return Outputs(
    (plan.tokens_spec(),) * plan.work.num_recent,
    None if outputs.d_bank is None else pl.BlockSpec(memory_space=pl.ANY),
    row,
    None if outputs.out_norm_scale is None else row,
  )


def _aliases(read: Read, plan: Plan, inputs: Inputs, outputs: Outputs) -> dict[int, int]:
  """Which flat input (counts are the first) becomes which flat output."""
  leaves = jax.tree.leaves(inputs)
  first_bank, first_recent = len(leaves), len(leaves) - len(inputs.d_recent)
  aliases = {}
  if inputs.d_bank is not None:
    first_bank, first_recent = first_bank - 1, first_recent - 1
    aliases[1 + first_bank] = len(outputs.d_recent)
  # The interpreter returns what is aliased with the rows past the end of the last tile.
  if not (read.interpret and plan.work.num_tokens % plan.tiles.tokens):
    aliases |= {1 + first_recent + k: k for k in range(len(inputs.d_recent))}
  return aliases


def _scratch_shapes(plan: Plan, threaded: bool) -> Scratch:
  columns = pltpu.VMEM((plan.stats_tokens, LANES), jnp.float32)
  rows = pltpu.VMEM((ROWS, plan.work.width), jnp.float32)
  d_bank, semaphores = BankTiles.scratch_shapes(plan, threaded)
  scores = pltpu.VMEM((ROWS, LANES), jnp.float32)
  return Scratch(columns, columns, columns, scores, rows, rows, d_bank, semaphores)


def _cost(plan: Plan, threaded: bool, inputs: Inputs, outputs: Outputs) -> pl.CostEstimate:
  tile = plan.work.num_tokens * plan.work.width * jnp.dtype(plan.work.dtype).itemsize
  streams = plan.work.num_slots * (3 if threaded else 2) + 1
  elements = plan.work.num_slots * plan.work.num_tokens * plan.work.width
  return pl.CostEstimate(
    flops=10 * elements,
    transcendentals=plan.work.num_slots * plan.work.num_tokens,
    bytes_accessed=streams * tile + direct_plan.num_bytes(inputs.stats, outputs.query),
  )
