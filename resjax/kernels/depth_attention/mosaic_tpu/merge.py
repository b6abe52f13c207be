"""The merge of two-phase depth attention on TPUs."""

import jax.numpy as jnp

from resjax.kernels.depth_attention.mosaic_tpu import merge_backward, merge_forward
from resjax.kernels.depth_attention.mosaic_tpu.call import prepared
from resjax.kernels.depth_attention.mosaic_tpu.merge_plan import TOKENS, VMEM_LIMIT, MergePlan
from resjax.kernels.depth_attention.operands import Read
from resjax.kernels.depth_attention.two_phase_operands import (
  MergeCotangents,
  MergeOperands,
  MergeStats,
)
from resjax.typing import Array


def obstacle(read: Read, operands: MergeOperands) -> str | None:
  """Returns why the kernels cannot run, or None."""
  if operands.like.dtype == jnp.float16:
    return "the running sum is float16, which TPUs do not load; bfloat16 and float32 they do"
  plan = MergePlan.of(read, operands)
  if plan.vmem_bytes > VMEM_LIMIT:
    return (
      f"tiles of {TOKENS} tokens of width {plan.width} need {plan.vmem_bytes} bytes of on-chip "
      f"memory, it takes {VMEM_LIMIT}"
    )
  return None


def forward(read: Read, operands: MergeOperands) -> tuple[Array, Array | None, MergeStats]:
  """Runs the forward kernel; see reference/merge.py."""
  plan = MergePlan.of(read, operands)
  return prepared(read, lambda operands: merge_forward.forward(read, operands, plan))(operands)


def backward(
  read: Read,
  operands: MergeOperands,
  out: Array,
  stats: MergeStats,
  d_out: Array,
  d_running: Array,
  d_reads: tuple[Array, Array],
) -> MergeCotangents:
  """Runs the reverse kernel; see reference/merge.py."""
  plan = MergePlan.of(read, operands)

  def run(operands, *arrays):
    return merge_backward.backward(read, operands, plan, *arrays)

  return prepared(read, run)(operands, out, stats, d_out, d_running, d_reads)
