"""The choice of a backend for depth attention, and what a kernel sees of a sharded array.

A backend is a folder: `reference` (plain JAX), `mosaic_tpu` and `mosaic_gpu` (Pallas kernels). Each
has a forward and a reverse pass of three operations: `direct`, a read of all sources; `block`,
phase 1 of the two-phase form; and `merge`, phase 2.

A kernel sees the tokens of one device as rows [T, D] of local arrays: there is one `shard_map`
around the forward and one around the reverse pass, both inside `custom_vjp`. Devices exchange
nothing but the sums over tokens in the cotangents of queries and output gains.
"""

import dataclasses
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp

from resjax.base import PyTree
from resjax.kernels import per_device
from resjax.kernels.depth_attention import bf16_remainder
from resjax.kernels.depth_attention.operands import (
  Cotangents,
  MergeCotangents,
  MergeOperands,
  MergeStats,
  Operands,
  Read,
  Stats,
)
from resjax.kernels.operation import LANES
from resjax.kernels.operation import choose as choose_implementation
from resjax.kernels.per_device import FIRST, NO_TOKENS, SECOND, THIRD

# The folders of kernels in order of preference, and the platform on which each of them runs.
KERNELS = {"mosaic_tpu": "tpu", "mosaic_gpu": "gpu"}
IMPLEMENTATIONS = (*KERNELS, "reference")
MAX_SOURCES = 128


def choose(
  read: Read, operands: Any, implementation: str | None, operation: str = "direct"
) -> Read:
  """Returns the read with the backend that runs it.

  Args:
    read: options without a backend.
    operands: `Operands` or `MergeOperands`.
    implementation: one of `IMPLEMENTATIONS`, or None, see `operation.choose`.
    operation: `direct`, `block` or `merge`.

  Raises:
    ValueError: there is no such backend, or it cannot run here.
  """
  obstacle = partial(_obstacle, operation=operation, read=read, operands=operands)
  chosen = choose_implementation(
    "depth attention", IMPLEMENTATIONS, implementation, obstacle, read.layout, read.interpret
  )
  return dataclasses.replace(read, implementation=chosen)


def has_kernel(read: Read, operands: Any, implementation: str | None, operation: str) -> bool:
  """Returns whether `choose` returns a kernel, not the reference; no if the name is not known."""
  try:
    return choose(read, operands, implementation, operation).implementation != "reference"
  except ValueError:
    return False


def forward(operation: str, read: Read, operands: Any) -> Any:
  """Runs the forward pass of an operation by the chosen backend.

  Args:
    operation: `direct`, `block` or `merge`.
    read: options with a backend.
    operands: `Operands` or `MergeOperands`.

  Returns:
    What `forward` returns in reference/{operation}.py.
  """
  run = partial(load(read.implementation, f"{operation}_forward").forward, read)
  axes = _AXES[operation](read, operands)
  return _on_each_device(read, run, (axes.operands,), axes.results)(operands)


def backward(operation: str, read: Read, operands: Any, *others: PyTree) -> Any:
  """Runs the reverse pass of an operation by the chosen backend.

  Args:
    operation: see `forward`.
    read: see `forward`.
    operands: see `forward`.
    *others: what `backward` takes after the operands in reference/{operation}.py.

  Returns:
    What `backward` returns in reference/{operation}.py.
  """
  run = partial(load(read.implementation, f"{operation}_backward").backward, read)
  axes = _AXES[operation](read, operands)
  in_axes = axes.operands, *axes.others
  return _on_each_device(read, run, in_axes, axes.cotangents)(operands, *others)


def load(implementation: str, module: str) -> Any:
  """Imports a module of a backend, such as `block_forward`, whose dialect nobody else loads."""
  if implementation == "reference":
    module = module.split("_")[0]  # both passes are in one file
  return importlib.import_module(f"{__package__}.{implementation}.{module}")


def _obstacle(name: str, operation: str, read: Read, operands: Any) -> str | None:
  """Returns why a backend cannot run an operation, or None."""
  if name == "reference":
    return None
  layout, like = read.layout, operands.like
  if layout.platform != KERNELS[name] and not read.interpret:
    return f"it needs platform {KERNELS[name]!r}, the mesh is on {layout.platform!r}"
  if read.num_heads > 1:
    return f"it has one head, not num_heads={read.num_heads}"
  if like.dtype not in (jnp.bfloat16, jnp.float16, jnp.float32):
    return f"the sources are {like.dtype}, it takes bfloat16, float16 and float32"
  if like.shape[-1] % LANES:
    return f"the width {like.shape[-1]} (config.model.d_model) is no multiple of {LANES}"
  if operands.num_slots > MAX_SOURCES:
    return f"there are {operands.num_slots} sources, it takes up to {MAX_SOURCES}"
  return per_device.obstacle(layout, like) or getattr(load(name, "obstacles"), operation)(
    read, operands
  )


class _Axes(NamedTuple):
  """Trees of the positions of the first token axis of all arrays of an operation."""

  operands: Any
  results: tuple  # of the forward pass
  others: tuple  # what the reverse pass takes beside the operands
  cotangents: Any  # what the reverse pass returns


def _direct_axes(read: Read, operands: Operands) -> _Axes:
  recent = (FIRST,) * len(operands.recent)
  fields = Operands(SECOND, recent, NO_TOKENS, NO_TOKENS, FIRST, NO_TOKENS)
  axes, stats = _without_absent(fields, operands), Stats(SECOND, SECOND, FIRST)
  sources = axes.bank, axes.recent
  return _Axes(
    operands=axes,
    results=(FIRST, FIRST if read.adds else None, stats),
    others=(stats, FIRST, sources if read.threaded else None),
    cotangents=Cotangents(*sources, NO_TOKENS, axes.out_norm_scale),
  )


def _block_axes(read: Read, operands: Operands) -> _Axes:
  direct, stats = _direct_axes(read, operands), Stats(SECOND, THIRD, SECOND)
  *_, d_sources = direct.others
  return direct._replace(results=(SECOND, stats), others=(stats, SECOND, SECOND, d_sources))


def _merge_axes(read: Read, operands: MergeOperands) -> _Axes:
  fields = MergeOperands(SECOND, SECOND, FIRST, NO_TOKENS, NO_TOKENS, FIRST, NO_TOKENS)
  axes = _without_absent(fields, operands)
  out_inverse_rms = None if operands.out_norm_scale is None else FIRST
  remainder = FIRST if bf16_remainder.is_kept(operands.like.dtype) else None
  stats = MergeStats(FIRST, FIRST, FIRST, out_inverse_rms, remainder)
  return _Axes(
    operands=axes,
    results=(FIRST, FIRST if read.adds else None, stats),
    others=(FIRST, stats, FIRST, FIRST, (SECOND, SECOND)),
    cotangents=MergeCotangents(SECOND, SECOND, FIRST, NO_TOKENS, axes.out_norm_scale),
  )


def _without_absent(fields: Any, operands: Any) -> Any:
  """Returns the fields of a tuple, None where the operands have no array."""
  present = (None if x is None else field for field, x in zip(fields, operands, strict=True))
  return type(fields)(*present)


_AXES: dict[str, Callable[[Read, Any], _Axes]] = {
  "direct": _direct_axes,
  "block": _block_axes,
  "merge": _merge_axes,
}


def _on_each_device(
  read: Read, run: Callable, in_axes: tuple[PyTree, ...], out_axes: PyTree
) -> Callable:
  """Returns a function that runs a backend, a kernel on the rows of each device."""
  if read.implementation == "reference":
    return run
  return per_device.on_each_device(read.layout, "depth attention", run, in_axes, out_axes)
