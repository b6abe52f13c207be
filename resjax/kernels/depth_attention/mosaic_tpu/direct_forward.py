"""The forward kernel of depth attention for TPUs: every source is read once.

All N tiles of a tile of tokens lie in on-chip memory. A first sweep over them gives the logits, a
second one mixes; nothing is rescaled, and only the output and two numbers per source and token go
back to memory.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention.mosaic_tpu import direct_plan, tiles
from resjax.kernels.depth_attention.mosaic_tpu.direct_forward_tile import (
  Inputs,
  Outputs,
  Scratch,
  kernel,
)
from resjax.kernels.depth_attention.mosaic_tpu.direct_plan import Plan
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS
from resjax.kernels.depth_attention.operands import Operands, Read, Stats
from resjax.typing import Array


def forward(read: Read, plan: Plan, operands: Operands) -> tuple[Array, Array | None, Stats]:
  """Runs the kernel on the rows of one device; see reference/direct.py."""
  inputs = _inputs(operands)
  outputs = _output_shapes(plan, read.adds)
  call = pl.pallas_call(
    partial(kernel, plan),
    out_shape=(outputs,),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=plan.grid,
      in_specs=(_input_specs(plan, inputs),),
      out_specs=(_output_specs(plan, read.adds),),
      scratch_shapes=(_scratch_shapes(plan),),
    ),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary"),
      vmem_limit_bytes=tiles.vmem_limit(plan.work),
    ),
    cost_estimate=_cost(plan, inputs, outputs),
    interpret=read.interpret,
    name="depth_attention_forward",
  )
  (got,) = call(operands.counts, inputs)
  tokens = plan.work.num_tokens
  stats = Stats(got.inverse_rms[:, :tokens], got.logits[:, :tokens], got.lse[0, :tokens])
  return got.out, got.running, stats


def _inputs(operands: Operands) -> Inputs:
  banked = () if operands.bank is None else (operands.bank,) * len(operands.bank)
  scale = operands.out_norm_scale
  return Inputs(
    direct_plan.spread_rows(operands.query),
    None if scale is None else direct_plan.spread_rows(scale),
    (*banked, *operands.recent),
    operands.addend,
  )


def _input_specs(plan: Plan, inputs: Inputs) -> Inputs:
  return Inputs(
    plan.row_spec(),
    None if inputs.out_norm_scale is None else plan.row_spec(),
    plan.slot_specs(),
    None if inputs.addend is None else plan.tokens_spec(),
  )


def _output_shapes(plan: Plan, adds: bool) -> Outputs:
  tokens = jax.ShapeDtypeStruct((plan.work.num_tokens, plan.work.width), plan.work.dtype)
  slots, total = (
    jax.ShapeDtypeStruct((n, plan.padded_tokens), jnp.float32) for n in (plan.work.num_slots, 1)
  )
  return Outputs(tokens, tokens if adds else None, slots, slots, total)


def _output_specs(plan: Plan, adds: bool) -> Outputs:
  tokens, slots = plan.tokens_spec(), plan.stats_spec(plan.work.num_slots)
  return Outputs(tokens, tokens if adds else None, slots, slots, plan.stats_spec(1))


def _scratch_shapes(plan: Plan) -> Scratch:
  columns = pltpu.VMEM((plan.stats_tokens, LANES), jnp.float32)
  weights = pltpu.VMEM((plan.tiles.tokens, LANES), jnp.float32)
  return Scratch(columns, columns, weights, pltpu.VMEM((ROWS, plan.work.width), jnp.float32))


def _cost(plan: Plan, inputs: Inputs, outputs: Outputs) -> pl.CostEstimate:
  moved = inputs._replace(slots=outputs.out), outputs
  sources = (plan.work.num_slots - 1) * direct_plan.num_bytes(outputs.out)
  elements = plan.work.num_slots * plan.work.num_tokens * plan.work.width
  return pl.CostEstimate(
    flops=6 * elements,
    transcendentals=2 * plan.work.num_slots * plan.work.num_tokens,
    bytes_accessed=sources + direct_plan.num_bytes(*moved),
  )
