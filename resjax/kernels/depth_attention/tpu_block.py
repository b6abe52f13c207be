"""Phase 1 of two-phase depth attention on TPUs."""

import jax.numpy as jnp

from resjax.kernels.depth_attention import tpu_block_forward
from resjax.kernels.depth_attention.operands import Operands, Read, Stats
from resjax.kernels.depth_attention.tpu_block_plan import BlockPlan
from resjax.kernels.depth_attention.tpu_rows import ROWS
from resjax.typing import Array

PLATFORM = "tpu"


def forward(read: Read, operands: Operands) -> tuple[Array, Stats]:
  """Runs the forward kernel; see reference_block.py."""
  plan = BlockPlan.of(read, operands, operands.num_slots + len(operands.query))
  out, *stats = tpu_block_forward.forward(read, operands, plan)
  inverse_rms, logits, lse = (from_lanes(plan, x) for x in stats)
  reads, slots = plan.num_reads, plan.num_slots
  return out, Stats(inverse_rms[0, :slots], logits[:reads, :slots], lse[:reads, 0])


def from_lanes(plan: BlockPlan, x: Array) -> Array:
  """Turns numbers [groups of tokens, rows, (n, t)] into [rows, n, T]."""
  x = x.reshape(*x.shape[:2], -1, ROWS)
  x = jnp.transpose(x, (1, 2, 0, 3))
  return x.reshape(*x.shape[:2], -1)[..., : plan.num_tokens]
