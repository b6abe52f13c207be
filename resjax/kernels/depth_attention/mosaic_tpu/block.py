"""Phase 1 of two-phase depth attention on TPUs."""

import math
from functools import partial

import jax.numpy as jnp

from resjax.kernels.depth_attention.mosaic_tpu import block_backward, block_forward
from resjax.kernels.depth_attention.mosaic_tpu.block_plan import BlockPlan
from resjax.kernels.depth_attention.mosaic_tpu.call import prepared
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES, ROWS
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.typing import Array, PyTree


def obstacle(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels cannot run, or None."""
  like = operands.like
  if like.dtype == jnp.float16:
    return "the sources are float16, which TPUs do not load; bfloat16 and float32 they do"
  if BlockPlan.of("backward", read, operands, math.prod(like.shape[:-1])) is None:
    return (
      f"{ROWS} tokens of {operands.num_slots} sources and {len(operands.query)} reads of width "
      f"{like.shape[-1]} do not fit on the chip"
    )
  return None


def forward(read: Read, operands: Operands) -> tuple[Array, Stats]:
  """Runs the forward kernel; see reference/block.py."""
  return prepared(read, partial(_forward, read))(operands)


def backward(
  read: Read, operands: Operands, stats: Stats, d_out: Array, d_lse: Array, d_sources: PyTree
) -> Cotangents:
  """Runs the reverse kernel; see reference/block.py."""
  run = partial(_backward, read)
  return prepared(read, run)(operands, stats, d_out, d_lse, d_sources)


def _forward(read: Read, operands: Operands) -> tuple[Array, Stats]:
  plan = BlockPlan.of("forward", read, operands, operands.like.shape[0])
  out, *numbers = block_forward.forward(read, operands, plan)
  inverse_rms, logits, lse = (_from_lanes(plan, x) for x in numbers)
  reads, slots = plan.num_reads, plan.work.num_slots
  return out, Stats(inverse_rms[0, :slots], logits[:reads, :slots], lse[:reads, 0])


def _backward(read, operands, stats, d_out, d_lse, d_sources) -> Cotangents:
  plan = BlockPlan.of("backward", read, operands, operands.like.shape[0])
  weights = jnp.exp(stats.logits - stats.lse[:, None])
  numbers = (
    weights,
    jnp.where(weights > 0, stats.logits, 0),
    jnp.broadcast_to(d_lse[:, None], (plan.num_reads, LANES // ROWS, plan.work.num_tokens)),
  )
  numbers = [_to_lanes(plan, x, plan.padded_reads) for x in numbers]
  numbers.insert(0, _to_lanes(plan, stats.inverse_rms[None], 1))
  return block_backward.backward(read, operands, plan, numbers, d_out, d_sources)


def _from_lanes(plan: BlockPlan, x: Array) -> Array:
  """Turns numbers [groups of tokens, rows, (n, t)] into [rows, n, T]."""
  x = jnp.transpose(x.reshape(*x.shape[:2], -1, ROWS), (1, 2, 0, 3))
  return x.reshape(*x.shape[:2], -1)[..., : plan.work.num_tokens]


def _to_lanes(plan: BlockPlan, x: Array, padded_rows: int) -> Array:
  """Turns numbers [rows, n, T] into [groups of tokens, rows, (n, t)], zeros behind."""
  rows, slots, tokens = x.shape
  more_tokens = plan.row_groups * ROWS - tokens
  x = jnp.pad(x, ((0, padded_rows - rows), (0, -slots % (LANES // ROWS)), (0, more_tokens)))
  x = jnp.transpose(x.reshape(*x.shape[:2], -1, ROWS), (2, 0, 1, 3))
  return x.reshape(*x.shape[:2], -1)
