"""What the kernels for NVIDIA GPUs cannot do; each function is named after an operation."""

from typing import Any

from resjax.kernels.depth_attention.mosaic_gpu import (
  block_backward,
  block_forward,
  direct_backward,
  direct_forward,
  merge_backward,
  merge_forward,
)
from resjax.kernels.depth_attention.mosaic_gpu.pairs import MAX_SOURCES
from resjax.kernels.depth_attention.operands import MergeOperands, Operands, Read
from resjax.kernels.mosaic_gpu import call, room_of

_MAX_WIDTH = 8192  # of rows that are held in registers: a thread has its share of up to four rows


def direct(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels of the direct read cannot run, or None."""
  return (
    _width_obstacle(operands)
    or call.device_obstacle(read)
    or _room_obstacle(read, operands, direct_forward, direct_backward)
  )


def block(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels of phase 1 cannot run, or None."""
  if operands.num_slots > MAX_SOURCES:
    return f"there are {operands.num_slots} sources, it takes up to {MAX_SOURCES}"
  return call.device_obstacle(read) or _room_obstacle(read, operands, block_forward, block_backward)


def merge(read: Read, operands: MergeOperands) -> str | None:
  """Returns why the kernels of the merge cannot run, or None."""
  return (
    _width_obstacle(operands)
    or call.device_obstacle(read)
    or _room_obstacle(read, operands, merge_forward, merge_backward)
  )


def _room_obstacle(read: Read, operands: Operands | MergeOperands, *passes: Any) -> str | None:
  """Returns why the shared memory of the GPU has no room for a pass of an operation, or None."""
  if all(module.tiles_of(read, operands) is not None for module in passes):
    return None
  sizes = f"a token of {operands.num_slots} sources"
  if operands.query.ndim > 1:
    sizes += f" and {len(operands.query)} reads"
  return (
    f"{sizes} of width {operands.like.shape[-1]} does not fit into shared memory, "
    f"{room_of(read)} bytes of a multiprocessor"
  )


def _width_obstacle(operands: Operands | MergeOperands) -> str | None:
  """Returns why a kernel that holds rows in registers cannot run, or None."""
  width = operands.like.shape[-1]
  if width > _MAX_WIDTH:
    return f"the width {width} (config.model.d_model) is above {_MAX_WIDTH}, what registers hold"
  return None
