"""The reverse pass for TPUs, in one kernel where that has room on the chip, else in two."""

import jax
import jax.numpy as jnp

from resjax.base import Array
from resjax.kernels.mosaic_tpu import call
from resjax.kernels.streams.mosaic_tpu import (
  backward_fused,
  backward_read,
  backward_write,
  budget,
  phi,
)
from resjax.kernels.streams.mosaic_tpu.plan import Inputs, Plan
from resjax.kernels.streams.mosaic_tpu.reverse_steps import Given
from resjax.kernels.streams.operands import Operands, Pending, Read, Stats


@call.on_one_device
def backward(
  read: Read, operands: Operands, stats: Stats, d_x: Array, d_streams: Array, d_weights: Array
) -> Operands:
  """Runs the reverse pass, see `reference.backward`."""
  (streams, weights, out), projection, parameters, gain = operands
  plan = Plan.of(operands.at(read.site))
  products, squares = stats
  if plan.num_columns:
    products = products.reshape(plan.num_products, plan.num_tokens)
  given = Given(
    streams, weights, out, phi.laid_out(plan, projection), plan.on_lanes(parameters),
    None if gain is None else gain.astype(jnp.float32)[None],
    products, squares, d_x, d_streams, d_weights.astype(jnp.float32),
  )  # fmt: skip
  way = budget.reverse(read, plan)
  assert way is not None  # or the backend refuses
  run = _in_two if way.width else _in_one
  return _summed(plan, operands.at(read.site), run(read, plan, way, given))


def _in_one(read: Read, plan: Plan, way: budget.Reverse, given: Given) -> Inputs:
  return backward_fused.backward(read, plan, way.buffers, given)


def _in_two(read: Read, plan: Plan, way: budget.Reverse, given: Given) -> Inputs:
  numbers = backward_read.backward(read, plan, way.buffers, given)
  found = backward_write.backward(read, plan, way, given, numbers)
  d_phi = None if found.phi is None else found.phi[None]
  d_weights = jnp.sum(found.weights, axis=0)
  return Inputs(found.streams, d_weights, found.out, d_phi, numbers.parameters, numbers.gain)


def _summed(plan: Plan, operands: Operands, found: Inputs) -> Operands:
  """Returns the cotangents of the operands: a kernel's results, summed over parts of the grid."""
  _, projection, parameters, gain = operands
  d_projection: Array | None = None
  if projection is not None:
    d_projection = jnp.sum(found.phi, axis=0)[:, : plan.num_columns]
    d_projection = jnp.swapaxes(d_projection, 1, 2).reshape(projection.shape)
    d_projection = d_projection.astype(projection.dtype)
  axes = 0, *range(-len(plan.token_axes), 0)
  d_parameters = jax.tree.map(
    lambda d, p: jnp.sum(d, axis=axes).astype(p.dtype), found.parameters, parameters
  )
  d_gain = None if gain is None else jnp.sum(found.gain, axis=(0, 1)).astype(gain.dtype)
  pending = Pending(found.streams, found.weights, found.out)
  return Operands(pending, d_projection, d_parameters, d_gain)
