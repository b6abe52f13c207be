"""The backends of two-phase depth attention, called like those of `depth_attention`."""

from functools import partial

from resjax.kernels.depth_attention import backends, bf16_remainder
from resjax.kernels.depth_attention.backends import FIRST, NO_TOKENS, SECOND, THIRD
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.kernels.depth_attention.reference import block as reference_block
from resjax.kernels.depth_attention.reference import merge as reference_merge
from resjax.kernels.depth_attention.two_phase_operands import (
  MergeCotangents,
  MergeOperands,
  MergeStats,
)
from resjax.typing import Array, PyTree


def block_forward(read: Read, operands: Operands) -> tuple[Array, Stats]:
  """Runs the forward pass of the chosen backend, see reference/block.py."""
  if read.implementation == "reference":
    return reference_block.forward(read, operands)
  run = partial(backends.kernel(read.implementation, "block").forward, read)
  in_axes = (backends.operand_axes(operands),)
  call = backends.on_rows(read.layout, run, in_axes, (SECOND, _BLOCK_STATS))
  return backends.first_order(call, operands)


def block_backward(
  read: Read, operands: Operands, stats: Stats, d_out: Array, d_lse: Array, d_sources: PyTree
) -> Cotangents:
  """Runs the reverse pass of the chosen backend, see reference/block.py."""
  if read.implementation == "reference":
    return reference_block.backward(read, operands, stats, d_out, d_lse, d_sources)
  run = partial(backends.kernel(read.implementation, "block").backward, read)
  axes = backends.operand_axes(operands)
  sources = axes.bank, axes.recent
  in_axes = axes, _BLOCK_STATS, SECOND, SECOND, sources if read.threaded else None
  call = backends.on_rows(read.layout, run, in_axes, Cotangents(*sources, NO_TOKENS, None))
  return backends.first_order(call, operands, stats, d_out, d_lse, d_sources)


def merge_forward(read: Read, operands: MergeOperands) -> tuple[Array, Array | None, MergeStats]:
  """Runs the forward pass of the chosen backend, see reference/merge.py."""
  if read.implementation == "reference":
    return reference_merge.forward(read, operands)
  run = partial(backends.kernel(read.implementation, "merge").forward, read)
  out_axes = FIRST, FIRST if read.adds else None, _merge_stats_axes(operands)
  call = backends.on_rows(read.layout, run, (_merge_axes(operands),), out_axes)
  return backends.first_order(call, operands)


def merge_backward(
  read: Read,
  operands: MergeOperands,
  out: Array,
  stats: MergeStats,
  d_out: Array,
  d_running: Array,
  d_reads: tuple[Array, Array],
) -> MergeCotangents:
  """Runs the reverse pass of the chosen backend, see reference/merge.py."""
  if read.implementation == "reference":
    return reference_merge.backward(read, operands, out, stats, d_out, d_running, d_reads)
  run = partial(backends.kernel(read.implementation, "merge").backward, read)
  axes = _merge_axes(operands)
  in_axes = axes, FIRST, _merge_stats_axes(operands), FIRST, FIRST, (SECOND, SECOND)
  out_axes = MergeCotangents(SECOND, SECOND, FIRST, NO_TOKENS, axes.out_norm_scale)
  call = backends.on_rows(read.layout, run, in_axes, out_axes)
  return backends.first_order(call, operands, out, stats, d_out, d_running, d_reads)


_BLOCK_STATS = Stats(SECOND, THIRD, SECOND)


def _merge_axes(operands: MergeOperands) -> MergeOperands:
  fields = MergeOperands(SECOND, SECOND, FIRST, NO_TOKENS, NO_TOKENS, FIRST, NO_TOKENS)
  there = [None if x is None else axis for axis, x in zip(fields, operands, strict=True)]
  return MergeOperands(*there)


def _merge_stats_axes(operands: MergeOperands) -> MergeStats:
  has_norm = operands.out_norm_scale is not None
  has_low_bits = bf16_remainder.are_kept(operands.like.dtype)
  return MergeStats(
    FIRST, FIRST, FIRST, FIRST if has_norm else None, FIRST if has_low_bits else None
  )
