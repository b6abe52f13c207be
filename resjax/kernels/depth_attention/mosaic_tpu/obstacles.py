"""What the kernels for TPUs cannot do; each function is named after an operation."""

import jax.numpy as jnp

from resjax.base.hardware import TPU_CHIPS
from resjax.kernels.depth_attention.mosaic_tpu import tiles
from resjax.kernels.depth_attention.mosaic_tpu.block_plan import BlockPlan
from resjax.kernels.depth_attention.mosaic_tpu.merge_plan import TOKENS, VMEM_LIMIT, MergePlan
from resjax.kernels.depth_attention.mosaic_tpu.tiles import PassSizes
from resjax.kernels.depth_attention.operands import MergeOperands, Operands, Read
from resjax.kernels.mosaic_tpu import ROWS, chip_of

_FLOAT16 = "float16, which TPUs do not load; bfloat16 and float32 they do"


def direct(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels of the direct read cannot run, or None."""
  if operands.like.dtype == jnp.float16:
    return f"the sources are {_FLOAT16}"
  passes = (PassSizes.of(name, read, operands) for name in ("forward", "backward"))
  return next(filter(None, map(tiles.obstacle, passes)), None)


def block(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels of phase 1 cannot run, or None."""
  like = operands.like
  if like.dtype == jnp.float16:
    return f"the sources are {_FLOAT16}"
  sizes = PassSizes.of("backward", read, operands)
  if BlockPlan.largest(sizes, len(operands.query), read.eps) is None:
    return (
      f"{ROWS} tokens of {operands.num_slots} sources and {len(operands.query)} reads of width "
      f"{like.shape[-1]} do not fit on the chip"
    )
  return None


def merge(read: Read, operands: MergeOperands) -> str | None:
  """Returns why the kernels of the merge cannot run, or None."""
  if operands.like.dtype == jnp.float16:
    return f"the running sum is {_FLOAT16}"
  plan = MergePlan.of(read, operands)
  room = min(VMEM_LIMIT, TPU_CHIPS[chip_of(read.layout)].vmem * 3 // 4)
  if plan.vmem_bytes > room:
    return (
      f"tiles of {TOKENS} tokens of width {plan.width} need {plan.vmem_bytes} bytes of on-chip "
      f"memory, it takes {room}"
    )
  return None
