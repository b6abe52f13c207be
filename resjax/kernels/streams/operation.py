"""The read of residual streams as an operation; reference.py says what its passes return."""

from functools import partial

import jax
import jax.numpy as jnp

from resjax.base import Array
from resjax.kernels import unused_outputs
from resjax.kernels.operation import FIRST, NO_TOKENS, SECOND, Axes, Operation
from resjax.kernels.streams import reference
from resjax.kernels.streams.operands import Operands, Pending, Read, Stats

_TAKES_STACKS = "mosaic_tpu"  # gets φ of all sites, the others get φ of the site that reads


def choose(read: Read, operands: Operands, implementation: str | None) -> Read:
  """Returns the read with the implementation that runs it, see `Operation.choose`."""
  return READ.choose(read, operands.at(read.site), implementation)


def forward(read: Read, operands: Operands) -> tuple[Array, Array, Array, Stats]:
  """Runs the forward pass by the chosen implementation, see `reference.forward`."""
  return READ.forward(read, _taken(read, operands))


def forward_if_used(read: Read, operands: Operands) -> tuple[Array, Array, Array, Stats]:
  """Runs the forward pass, by a kernel that can do so without streams or stats that nobody uses.

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
  x, streams, mixing, stats = _axes(read, operands).results
  results = x, streams if keep_streams else None, mixing, stats if keep_stats else None
  return READ.forward(read, operands, results, keep_streams=keep_streams, keep_stats=keep_stats)


def backward(
  read: Read, operands: Operands, stats: Stats, d_x: Array, d_streams: Array, d_mixing: Array
) -> Operands:
  """Runs the reverse pass by the chosen implementation, see `reference.backward`."""
  found = READ.backward(read, _taken(read, operands), stats, d_x, d_streams, d_mixing)
  if operands.projection is None:
    return found
  behind = len(operands.projection) - read.site - 1
  of_one = found.projection[None]
  stacked = jnp.pad(of_one, ((read.site, behind), *((0, 0),) * (of_one.ndim - 1)))
  return found._replace(projection=stacked)


def _taken(read: Read, operands: Operands) -> Operands:
  return operands if read.implementation == _TAKES_STACKS else operands.at(read.site)


def _axes(read: Read, operands: Operands) -> Axes:
  shared = jax.tree.map(lambda _: NO_TOKENS, operands._replace(pending=None))
  axes, stats = shared._replace(pending=Pending(SECOND, SECOND, FIRST)), Stats(None, None)
  if operands.projection is not None:
    of_one = operands.projection.ndim - (read.implementation == _TAKES_STACKS)
    stats = Stats(SECOND + (of_one == 2), SECOND)
  return Axes(axes, (FIRST, SECOND, SECOND, stats), (stats, FIRST, SECOND, SECOND), axes)


def _limit(read: Read, operands: Operands) -> str | None:
  del read
  if operands.pending.has_read:
    return "the site before has decided what is read (read_site=previous)"
  return None


READ = Operation("residual streams", __package__, _axes, limit=_limit)
