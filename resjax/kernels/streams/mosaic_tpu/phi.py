"""φ on the chip: kernels load it in float32, and keep it as their products take it.

XLA cuts φ of all sites of a layer out of the stack of layers. A kernel that takes φ of its site out
of that and rounds it saves two arrays of its size, each written and read. Where K is no multiple of
16, XLA writes one of them nevertheless, with more rows.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array
from resjax.kernels.mosaic_tpu import ROWS, Span, for_each_chunk, for_each_row_group
from resjax.kernels.operation import LANES, Ref
from resjax.kernels.streams.mosaic_tpu.plan import PARTS, Plan, in_parts

SPEC = pl.BlockSpec(memory_space=pl.ANY)  # of φ in the memory of the device
_LOADED_BYTES = 384 * 2**10  # of φ in float32 on the chip; two of them, while φ is loaded


class Phi(NamedTuple):
  """Buffers in VMEM for φ, of all its channels or some.

  Attributes:
    kept: in bfloat16 its first 8 bits, and behind these rows the next 8 [projections, 2 rows, D];
      or all in float32 [projections, rows, D].
    loaded: room for some rows in float32, twice, if φ is kept in bfloat16 [2, some rows, D].
    arrived: semaphores of the copies to `loaded` [2].
  """

  kept: Any
  loaded: Any
  arrived: Any


def room(plan: Plan) -> Phi | None:
  """Returns scratch for the channels of a plan, None if there is no φ."""
  if not plan.num_columns:
    return None
  if not plan.split:
    return Phi(pltpu.VMEM((plan.projections, plan.rows, plan.width), jnp.float32), None, None)
  kept = pltpu.VMEM((plan.projections, PARTS * plan.rows, plan.width), jnp.bfloat16)
  loaded = pltpu.VMEM((2, _rows_at_once(plan), plan.width), jnp.float32)
  return Phi(kept, loaded, pltpu.SemaphoreType.DMA((2,)))


def room_bytes(plan: Plan) -> int:
  """Returns the bytes of `room`."""
  if not (plan.num_columns and plan.split):
    return plan.phi_bytes
  return plan.phi_bytes + 2 * 4 * _rows_at_once(plan) * plan.width


def _rows_at_once(plan: Plan) -> int:
  """Returns how many rows of φ are loaded at once."""
  groups = plan.rows // ROWS
  fitting = max(1, _LOADED_BYTES // (4 * ROWS * plan.width))
  return ROWS * max(n for n in range(1, min(groups, fitting) + 1) if groups % n == 0)


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
    source: φ of a site [projections, rows, D] float32 in the memory of the device.
    target: on-chip memory.
  """
  part, step = pl.program_id(0), pl.program_id(1)

  @pl.when(jnp.logical_and(step == 0, part == 0) if fetches < plan.grid[0] else step == 0)
  def _() -> None:
    load(plan, source, target)


def load(plan: Plan, source: Ref, target: Phi) -> None:
  """Loads φ of all channels or some, and rounds rows of it while the next ones arrive.

  Args:
    plan: sizes, D being that of the channels that are loaded.
    source: φ of these channels [projections, rows, D] float32 in the memory of the device.
    target: on-chip memory.
  """
  if not plan.split:
    pltpu.sync_copy(source, target.kept)
    return
  rows = target.loaded.shape[1]
  copies = plan.rows // rows  # of a projection
  count = plan.projections * copies

  def place(index: Array) -> tuple[Array, Array]:
    return index // copies, pl.multiple_of(index % copies * rows, ROWS)

  def copy(index: Array) -> Any:
    (number, start), buffer = place(index), index % 2
    ends = source.at[number, pl.ds(start, rows)], target.loaded.at[buffer]
    return pltpu.make_async_copy(*ends, target.arrived.at[buffer])

  def step(index: Array, _: Any) -> None:
    pl.when(index + 1 < count)(lambda: copy(index + 1).start())
    copy(index).wait()
    number, start = place(index)
    starts = [pl.multiple_of(part * plan.rows + start, ROWS) for part in range(PARTS)]
    parts = [target.kept.at[number, pl.ds(start, rows)] for start in starts]
    _round(plan, target.loaded.at[index % 2], parts)

  copy(jnp.int32(0)).start()
  lax.fori_loop(0, count, step, None)


def _round(plan: Plan, source: Ref, targets: list[Ref]) -> None:
  """Writes rows of φ as two parts."""

  def group(_: Array, rows: Span) -> None:
    def chunk(lanes: Span, _: Any) -> None:
      for ref, part in zip(targets, in_parts(source[rows, lanes]), strict=True):
        ref[rows, lanes] = part

    for_each_chunk(plan.width, LANES, chunk)

  for_each_row_group(source.shape[0], group)
