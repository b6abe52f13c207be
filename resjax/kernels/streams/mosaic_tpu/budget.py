"""How much VMEM the kernels for TPUs need, and which of them fit."""

import itertools
from typing import NamedTuple

from resjax.base.hardware import TPU_CHIPS, find_tpu
from resjax.kernels.mosaic_tpu import ROWS, TOKENS, chip_of
from resjax.kernels.operation import LANES
from resjax.kernels.streams.mosaic_tpu import phi
from resjax.kernels.streams.mosaic_tpu.plan import PARTS, Plan
from resjax.kernels.streams.operands import Read

_SPARE = 4 * 2**20  # left for registers that are spilled
_BUFFERS = (2, 1)  # streams are moved while the tile before is worked on, or they are not
# What the derivative of Sinkhorn's 20 iterations keeps: so many matrices [R, R] per token.
_KEPT = 48


class Reverse(NamedTuple):
  """How the reverse pass runs.

  Attributes:
    buffers: tiles of streams on the chip, in the one kernel or in the first of two.
    part: channels of which the second kernel keeps φ while tokens pass; 0: one kernel does
      everything.
    width: channels of a tile of the second kernel, of which a part has one or more.
    width_buffers: tiles of streams on the chip in the second kernel.
  """

  buffers: int
  part: int = 0
  width: int = 0
  width_buffers: int = 0


def vmem_limit(read: Read) -> int:
  """Returns how many bytes of on-chip memory the compiler may give a kernel."""
  return TPU_CHIPS[chip_of(read.layout)].vmem - _SPARE // 4


def room(read: Read) -> int:
  """Returns the bytes of VMEM that a kernel may allocate."""
  return vmem_limit(read) - _SPARE


def fetches(read: Read, plan: Plan) -> int:
  """Returns how often φ is loaded by a kernel that keeps it: once by every core that works.

  A chip that is not known, such as an interpreter, may have as many cores as the grid has parts.
  """
  chip = find_tpu(read.layout.device.device_kind)
  return min(TPU_CHIPS[chip].device_cores, plan.grid[0]) if chip else plan.grid[0]


def forward_buffers(read: Read, plan: Plan) -> int:
  """Returns how many tiles of streams have room beside each other in the forward kernel, or 0."""
  return next((n for n in _BUFFERS if forward_bytes(plan, n) <= room(read)), 0)


def reverse(read: Read, plan: Plan) -> Reverse | None:
  """Returns how the reverse pass runs: in one kernel, if that has room, or in two; None: not.

  The second kernel has work for all cores where some number of parts can give it to them.
  """
  space = room(read)
  for buffers in _BUFFERS:
    if fused_bytes(plan, buffers) <= space:
      return Reverse(buffers)
  first = next((n for n in _BUFFERS if read_back_bytes(plan, n) <= space), 0)
  cores = TPU_CHIPS[chip_of(read.layout)].device_cores
  busy = [part for part in widths(plan) if plan.width // part % cores == 0]
  for parts, buffers in itertools.product((busy, widths(plan)), _BUFFERS):
    for part in parts:
      for width in widths(plan.narrowed(part)):
        if first and write_back_bytes(plan, part, width, buffers) <= space:
          return Reverse(first, part, width, buffers)
  return None


def least_bytes(plan: Plan) -> int:
  """Returns the bytes that a chip must have for a read and its reverse pass in two kernels."""
  least = widths(plan)[-1]
  second = write_back_bytes(plan, least, least, 1)
  return max(forward_bytes(plan, 1), read_back_bytes(plan, 1), second)


def widths(plan: Plan) -> list[int]:
  """Returns the widths into which the second of two reverse kernels can cut D, largest first."""
  parts = plan.width // LANES
  return [plan.width // n for n in range(1, parts + 1) if parts % n == 0]


def forward_bytes(plan: Plan, buffers: int) -> int:
  """Returns the bytes that the forward kernel needs on the chip.

  Args:
    plan: sizes.
    buffers: tiles of streams beside each other.
  """
  streams = buffers * (2 * plan.num_streams + 2) * _tile(plan)
  mixed = ROWS * plan.width * 4
  return streams + mixed + phi.room_bytes(plan) + _product_bytes(plan) + _number_bytes(plan)


def fused_bytes(plan: Plan, buffers: int) -> int:
  """Returns the same of the one reverse kernel."""
  streams = buffers * (3 * plan.num_streams + 3) * _tile(plan)
  wide = (plan.num_streams + 1) * TOKENS * plan.width * 4
  numbers = _number_bytes(plan) + _derivative_bytes(plan)
  room = phi.room_bytes(plan) + plan.phi_bytes
  return streams + wide + room + _back_bytes(plan) + numbers


def read_back_bytes(plan: Plan, buffers: int) -> int:
  """Returns the same of the first of two reverse kernels."""
  streams = buffers * (plan.num_streams + 2) * _tile(plan)
  return streams + 3 * ROWS * plan.width * 4 + _number_bytes(plan) + _derivative_bytes(plan)


def write_back_bytes(plan: Plan, part: int, width: int, buffers: int) -> int:
  """Returns the same of the second of two reverse kernels.

  Args:
    plan: sizes.
    part: channels of which φ stays on the chip.
    width: channels of a tile.
    buffers: tiles of streams beside each other.
  """
  whole, tile = plan.narrowed(part), plan.narrowed(width)
  streams = buffers * (3 * plan.num_streams + 3) * _tile(tile)
  wide = plan.num_streams * TOKENS * width * 4 + ROWS * width * 4
  room = phi.room_bytes(whole) + whole.phi_bytes
  return streams + wide + room + _back_bytes(tile) + _number_bytes(plan)


def _tile(plan: Plan) -> int:
  return TOKENS * plan.width * plan.dtype.itemsize


def _number_bytes(plan: Plan) -> int:
  """Returns the bytes of numbers per token: two tiles of each, and columns of M and b."""
  rows = 4 * plan.num_weights + 4 * plan.num_products + 12 * plan.num_streams
  columns = 2 * (plan.num_weights + LANES) + 4 * LANES
  return (rows + columns) * TOKENS * 4


def _derivative_bytes(plan: Plan) -> int:
  """Returns the bytes that the derivative of coefficients of all streams together keeps."""
  if not plan.num_columns or plan.shared:
    return 0
  per_row = 1 if plan.packed else 8
  return _KEPT * plan.num_streams**2 * per_row * TOKENS * 4


def _product_bytes(plan: Plan) -> int:
  return 2 * PARTS * plan.rows * TOKENS * 4


def _back_bytes(plan: Plan) -> int:
  return plan.rows * plan.width * 4
