"""What the kernels for TPUs cannot do."""

from resjax.hardware.chips import TPU_CHIPS
from resjax.kernels.depth_attention.mosaic_tpu.tiles import chip_of
from resjax.kernels.streams.mosaic_tpu.plan import TOKENS, Plan
from resjax.kernels.streams.operands import Operands, Read

_SPARE = 4 * 2**20  # left for registers that are spilled


def vmem_limit(read: Read) -> int:
  """Returns how many bytes of on-chip memory the compiler may give a kernel."""
  return TPU_CHIPS[chip_of(read.layout)].vmem - _SPARE // 4


def num_buffers(read: Read, plan: Plan) -> int:
  """Returns how many tiles of streams have room on the chip: 2, 1 or none."""
  room = vmem_limit(read) - _SPARE
  return next((n for n in (2, 1) if plan.vmem_bytes(n) <= room), 0)


def obstacle(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels cannot run, or None."""
  plan = Plan.of(operands)
  tokens = plan.num_tokens
  if read.layout.spans_devices:
    tokens //= read.layout.num_shards("batch") * read.layout.num_shards("tokens")
  if tokens % TOKENS:
    return f"a device has {tokens} tokens, it takes multiples of {TOKENS}"
  if not num_buffers(read, plan):
    room = vmem_limit(read) - _SPARE
    return (
      f"{TOKENS} tokens of {plan.num_streams} streams of width {plan.width} with "
      f"{plan.num_columns} coefficients need {plan.vmem_bytes(1) / 2**20:.0f} MiB on the chip, it "
      f"has {room / 2**20:.0f}"
    )
  return None
