"""The choice of a backend for a read of residual streams, and what it sees of a sharded array."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from resjax.base import Array, PyTree
from resjax.kernels import operation, per_device, unused_outputs
from resjax.kernels.per_device import FIRST, NO_TOKENS, SECOND
from resjax.kernels.streams import reference
from resjax.kernels.streams.operands import Operands, Pending, Read, Stats

# The folders of kernels in order of preference, and the platform on which each of them runs.
KERNELS = {"mosaic_tpu": "tpu", "mosaic_gpu": "gpu"}
IMPLEMENTATIONS = (*KERNELS, "reference")
_TAKES_STACKS = "mosaic_tpu"  # gets φ of all sites, the other backends get φ of the site that reads


def choose(read: Read, operands: Operands, implementation: str | None) -> Read:
  """Returns the read with the backend that runs it.

  Args:
    read: options without a backend.
    operands: of the read.
    implementation: one of `IMPLEMENTATIONS`, or None, see `operation.choose`.

  Raises:
    ValueError: there is no such backend, or it cannot run here.
  """
  obstacle = partial(_obstacle, read=read, operands=operands.at(read.site))
  chosen = operation.choose(
    "residual streams", IMPLEMENTATIONS, implementation, obstacle, read.layout, read.interpret
  )
  return dataclasses.replace(read, implementation=chosen)


def forward(read: Read, operands: Operands) -> tuple[Array, Array, Array, Stats]:
  """Runs the forward pass by the chosen backend, see `reference.forward`."""
  axes = _axes(operands)
  results = (FIRST, SECOND, SECOND, _stats_axes(read, operands))
  return _on_each_device(read, "forward", (axes,), results)(_taken(read, operands))


def forward_if_used(read: Read, operands: Operands) -> tuple[Array, Array, Array, Stats]:
  """Runs the forward pass, by a backend that can do so without streams or stats that nobody uses.

  Nobody uses the streams of the last read of a layer that is computed again for its reverse pass,
  and the stats of a layer that will be.
  """
  if read.implementation != "mosaic_tpu" or not isinstance(read.interpret, bool):
    return forward(read, operands)  # effects of an interpreter cannot be part of such a call
  leaves, structure = jax.tree.flatten(operands)

  def run(needed: tuple[bool, ...], *leaves: Array) -> list[Array]:
    operands = jax.tree.unflatten(structure, leaves)
    _, keep_streams, _, *keep_stats = needed
    *others, stats = _forward_in_part(read, operands, keep_streams, any(keep_stats))
    found = [*others, *(stats or [None] * len(keep_stats))]
    return [array for array, keep in zip(found, needed, strict=True) if keep]

  shapes, results = jax.tree.flatten(
    jax.eval_shape(partial(reference.forward, read), operands.at(read.site))
  )
  return jax.tree.unflatten(results, unused_outputs.call(run, shapes, *leaves))


def _forward_in_part(
  read: Read, operands: Operands, keep_streams: bool, keep_stats: bool
) -> tuple[Array, Array | None, Array, Stats | None]:
  stats_axes = _stats_axes(read, operands) if keep_stats else None
  results = (FIRST, SECOND if keep_streams else None, SECOND, stats_axes)
  keep = {"keep_streams": keep_streams, "keep_stats": keep_stats}
  return _on_each_device(read, "forward", (_axes(operands),), results, **keep)(
    _taken(read, operands)
  )


def backward(
  read: Read, operands: Operands, stats: Stats, d_x: Array, d_streams: Array, d_mixing: Array
) -> Operands:
  """Runs the reverse pass by the chosen backend, see `reference.backward`."""
  axes = _axes(operands)
  in_axes = (axes, _stats_axes(read, operands), FIRST, SECOND, SECOND)
  run = _on_each_device(read, "backward", in_axes, axes)
  found = run(_taken(read, operands), stats, d_x, d_streams, d_mixing)
  if operands.projection is None:
    return found
  behind = len(operands.projection) - read.site - 1
  of_one = found.projection[None]
  stacked = jnp.pad(of_one, ((read.site, behind), *((0, 0),) * (of_one.ndim - 1)))
  return found._replace(projection=stacked)


def _taken(read: Read, operands: Operands) -> Operands:
  """Returns the operands as the backend takes them."""
  return operands if read.implementation == _TAKES_STACKS else operands.at(read.site)


def _axes(operands: Operands) -> Operands:
  """Returns the position of the first token axis of every operand and its cotangent."""
  shared = jax.tree.map(lambda _: NO_TOKENS, operands._replace(pending=None))
  return shared._replace(pending=Pending(SECOND, SECOND, FIRST))


def _stats_axes(read: Read, operands: Operands) -> Stats:
  projection = operands.at(read.site).projection
  if projection is None:
    return Stats(None, None)
  return Stats(SECOND + (projection.ndim == 2), SECOND)


def _on_each_device(
  read: Read, name: str, in_axes: tuple[PyTree, ...], out_axes: PyTree, **options: Any
) -> Callable:
  if read.implementation == "reference":
    return partial(getattr(reference, name), read)
  run = partial(getattr(_load(read.implementation, name), name), read, **options)
  return per_device.on_each_device(read.layout, "residual streams", run, in_axes, out_axes)


def _load(implementation: str, module: str) -> Any:
  return operation.load(__package__, implementation, module)


def _obstacle(name: str, read: Read, operands: Operands) -> str | None:
  """Returns why a backend cannot run, or None."""
  if name == "reference":
    return None
  reason = operation.obstacle_of_streams(KERNELS[name], operands.like, read.layout, read.interpret)
  return reason or _load(name, "obstacles").obstacle(read, operands)
