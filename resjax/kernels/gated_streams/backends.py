"""The choice of a backend for a gated read, and what it sees of a sharded array."""

import dataclasses
from functools import partial
from typing import Any

from resjax.base import Array
from resjax.kernels import operation, per_device
from resjax.kernels.gated_streams.operands import Operands, Read
from resjax.kernels.per_device import FIRST, NO_TOKENS, SECOND

# The folders of kernels in order of preference, and the platform on which each of them runs.
KERNELS = {"mosaic_tpu": "tpu", "mosaic_gpu": "gpu"}
IMPLEMENTATIONS = (*KERNELS, "reference")
_WHAT = "gated reads of residual streams"


def choose(read: Read, operands: Operands, implementation: str | None) -> Read:
  """Returns the read with the backend that runs it.

  Args:
    read: options without a backend.
    operands: of the read.
    implementation: one of `IMPLEMENTATIONS`, or None, see `operation.choose`.

  Raises:
    ValueError: there is no such backend, or it cannot run here.
  """
  obstacle = partial(_obstacle, read=read, operands=operands)
  chosen = operation.choose(
    _WHAT, IMPLEMENTATIONS, implementation, obstacle, read.layout, read.interpret
  )
  return dataclasses.replace(read, implementation=chosen)


def forward(read: Read, operands: Operands) -> tuple[Array, Array | None, Array]:
  """Runs the forward pass by the chosen kernel.

  Returns:
    x [..., D]; the logits [R, ...] float32, or None; and z [..., at least r] float32, which the
    reverse pass takes.
  """
  axes = _axes(operands)
  run = partial(_load(read.implementation, "forward").forward, read)
  results = FIRST, _if_written(operands, SECOND), FIRST
  return per_device.on_each_device(read.layout, _WHAT, run, (axes,), results)(operands)


def backward(
  read: Read,
  operands: Operands,
  squeezed: Array,
  d_x: Array,
  d_logits: Array | None,
  d_streams: Array | None,
) -> Operands:
  """Runs the reverse pass by the chosen kernel.

  Args:
    read: options.
    operands: of the forward pass.
    squeezed: z, from the forward pass.
    d_x: cotangent of what was read [..., D].
    d_logits: of the logits [R, ...], or None.
    d_streams: of the streams that were handed on [R, ..., D], or None.

  Returns:
    The cotangents of the operands.
  """
  axes, second = _axes(operands), _if_written(operands, SECOND)
  run = partial(_load(read.implementation, "backward").backward, read)
  in_axes = axes, FIRST, FIRST, second, second
  on_devices = per_device.on_each_device(read.layout, _WHAT, run, in_axes, axes)
  return on_devices(operands, squeezed, d_x, d_logits, d_streams)


def _axes(operands: Operands) -> Operands:
  """Returns the position of the first token axis of every operand and its cotangent."""
  inject = _if_written(operands, NO_TOKENS)
  return Operands(SECOND, NO_TOKENS, NO_TOKENS, NO_TOKENS, inject)


def _if_written(operands: Operands, axis: int) -> int | None:
  """Returns the position of an array that is there if something is written after the read."""
  return None if operands.inject is None else axis


def _load(implementation: str, module: str) -> Any:
  return operation.load(__package__, implementation, module)


def _obstacle(name: str, read: Read, operands: Operands) -> str | None:
  """Returns why a backend cannot run, or None."""
  if name == "reference":
    return None
  reason = operation.obstacle_of_streams(KERNELS[name], operands.like, read.layout, read.interpret)
  return reason or _load(name, "obstacles").obstacle(read, operands)
