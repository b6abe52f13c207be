"""The three operations of depth attention; reference/ says what their passes take and return."""

from functools import partial
from typing import Any

from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention import operands as types
from resjax.kernels.operation import FIRST, NO_TOKENS, SECOND, THIRD, Axes, Operation

MAX_SOURCES = 128


def _limit(read: types.Read, operands: types.Operands | types.MergeOperands) -> str | None:
  if read.num_heads > 1:
    return f"it has one head, not num_heads={read.num_heads}"
  if operands.num_slots > MAX_SOURCES:
    return f"there are {operands.num_slots} sources, it takes up to {MAX_SOURCES}"
  return None


def _direct_axes(read: types.Read, operands: types.Operands) -> Axes:
  recent = (FIRST,) * len(operands.recent)
  fields = types.Operands(SECOND, recent, NO_TOKENS, NO_TOKENS, FIRST, NO_TOKENS)
  axes, stats = _without_absent(fields, operands), types.Stats(SECOND, SECOND, FIRST)
  sources = axes.bank, axes.recent
  return Axes(
    operands=axes,
    results=(FIRST, FIRST if read.adds else None, stats),
    others=(stats, FIRST, sources if read.threaded else None),
    cotangents=types.Cotangents(*sources, NO_TOKENS, axes.out_norm_scale),
  )


def _block_axes(read: types.Read, operands: types.Operands) -> Axes:
  direct, stats = _direct_axes(read, operands), types.Stats(SECOND, THIRD, SECOND)
  *_, d_sources = direct.others
  return direct._replace(results=(SECOND, stats), others=(stats, SECOND, SECOND, d_sources))


def _merge_axes(read: types.Read, operands: types.MergeOperands) -> Axes:
  fields = types.MergeOperands(SECOND, SECOND, FIRST, NO_TOKENS, NO_TOKENS, FIRST, NO_TOKENS)
  axes = _without_absent(fields, operands)
  out_inverse_rms = None if operands.out_norm_scale is None else FIRST
  remainder = FIRST if bf16_remainder.is_kept(operands.like.dtype) else None
  stats = types.MergeStats(FIRST, FIRST, FIRST, out_inverse_rms, remainder)
  return Axes(
    operands=axes,
    results=(FIRST, FIRST if read.adds else None, stats),
    others=(FIRST, stats, FIRST, FIRST, (SECOND, SECOND)),
    cotangents=types.MergeCotangents(SECOND, SECOND, FIRST, NO_TOKENS, axes.out_norm_scale),
  )


def _without_absent(fields: Any, operands: Any) -> Any:
  """Returns the fields of a tuple, with None in place of those whose operand is None."""
  present = (None if x is None else field for field, x in zip(fields, operands, strict=True))
  return type(fields)(*present)


_operation = partial(
  Operation,
  "depth attention",
  __package__,
  arrays="sources",
  dtypes=("bfloat16", "float16", "float32"),
  limit=_limit,
)
DIRECT = _operation(_direct_axes, kind="direct")  # a read of all sources
BLOCK = _operation(_block_axes, kind="block")  # phase 1 of the two-phase form
MERGE = _operation(_merge_axes, kind="merge")  # phase 2
OPERATIONS = {operation.kind: operation for operation in (DIRECT, BLOCK, MERGE)}
