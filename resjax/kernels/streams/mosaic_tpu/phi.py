"""φ on the chip: kernels load it in float32, and keep it as their products take it.

XLA cuts φ of all sites of a layer out of the stack of layers. A kernel that takes φ of its site out
of that and rounds it saves two arrays of its size, each written and read.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.kernels.depth_attention.mosaic_tpu.loops import Span, for_each_chunk, for_each_row_group
from resjax.kernels.depth_attention.mosaic_tpu.tiles import LANES
from resjax.kernels.streams.mosaic_tpu.plan import Plan, Ref, in_parts
from resjax.typing import Array

SPEC = pl.BlockSpec(memory_space=pl.ANY)  # of φ in the memory of the device


class Phi(NamedTuple):
  """On-chip memory of φ, of all its channels or some.

  Attributes:
    parts: its first 8 bits and the next 8 in bfloat16, or all in float32 [projections, rows, D].
    loaded: room for one projection in float32 [rows, D], if it is kept in parts.
  """

  parts: tuple[Any, ...]
  loaded: Any


def room(plan: Plan) -> Phi | None:
  """Returns scratch for the channels of a plan, None if there is no φ."""
  if not plan.num_columns:
    return None
  shape = plan.projections, plan.rows, plan.width
  if not plan.split:
    return Phi((pltpu.VMEM(shape, jnp.float32),), None)
  parts = pltpu.VMEM(shape, jnp.bfloat16), pltpu.VMEM(shape, jnp.bfloat16)
  return Phi(parts, pltpu.VMEM(shape[1:], jnp.float32))


def room_bytes(plan: Plan) -> int:
  """Returns the bytes of `room`."""
  loaded = plan.phi_bytes // plan.projections if plan.split else 0
  return plan.phi_bytes + loaded


def laid_out(plan: Plan, projection: Array | None) -> Array | None:
  """Returns φ of all sites [S, projections, rows, D] in float32, as a kernel takes it."""
  if projection is None:
    return None
  phi = projection.reshape(-1, plan.projections, plan.width, plan.num_columns)
  phi = jnp.swapaxes(phi.astype(jnp.float32), 2, 3)
  return jnp.pad(phi, ((0, 0), (0, 0), (0, plan.rows - plan.num_columns), (0, 0)))


def load_at_start(plan: Plan, fetches: int, source: Ref, target: Phi) -> None:
  """Loads φ in the first step of a grid of `Plan.grid`, see `load`.

  Args:
    plan: sizes.
    fetches: how often φ is loaded: in the first step of each part of the grid, or of the first.
    source: φ of a site.
    target: on-chip memory.
  """
  part, step = pl.program_id(0), pl.program_id(1)

  @pl.when(jnp.logical_and(step == 0, part == 0) if fetches < plan.grid[0] else step == 0)
  def _() -> None:
    load(plan, source, target)


def load(plan: Plan, source: Ref, target: Phi) -> None:
  """Loads φ.

  Args:
    plan: sizes, D being that of the channels that are loaded.
    source: φ of these channels [projections, rows, D] in the memory of the device.
    target: on-chip memory.
  """

  def projection(number: Array, _: Any) -> None:
    if not plan.split:
      pltpu.sync_copy(source.at[number], target.parts[0].at[number])
      return
    pltpu.sync_copy(source.at[number], target.loaded)
    for_each_row_group(plan.rows, lambda _, rows: _round(plan, number, rows, target))

  lax.fori_loop(0, plan.projections, projection, None)


def _round(plan: Plan, number: Array, rows: Span, target: Phi) -> None:
  """Writes a group of rows of the loaded projection as two parts."""

  def chunk(lanes: Span, _: Any) -> None:
    parts = in_parts(target.loaded[rows, lanes])
    for ref, part in zip(target.parts, parts, strict=True):
      ref[number, rows, lanes] = part

  for_each_chunk(plan.width, LANES, chunk)
