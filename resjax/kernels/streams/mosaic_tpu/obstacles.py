"""What the kernels for TPUs cannot do."""

from resjax.kernels.mosaic_tpu import TOKENS
from resjax.kernels.streams.mosaic_tpu import budget
from resjax.kernels.streams.mosaic_tpu.plan import Plan
from resjax.kernels.streams.operands import Operands, Read


def obstacle(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels cannot run, or None."""
  plan = Plan.of(operands)
  tokens = plan.num_tokens
  if read.layout.spans_devices:
    tokens //= read.layout.num_shards("batch") * read.layout.num_shards("tokens")
  if tokens % TOKENS:
    return f"a device has {tokens} tokens, it takes multiples of {TOKENS}"
  if not (budget.forward_buffers(read, plan) and budget.reverse(read, plan)):
    return (
      f"{TOKENS} tokens of {plan.num_streams} streams of width {plan.width} with "
      f"{plan.num_columns} coefficients need {budget.least_bytes(plan) / 2**20:.0f} MiB on the "
      f"chip, it has {budget.room(read) / 2**20:.0f}"
    )
  return None
