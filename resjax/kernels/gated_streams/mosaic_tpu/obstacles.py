"""What the kernels for TPUs cannot do."""

from resjax.kernels.gated_streams.mosaic_tpu.plan import TOKENS, Plan
from resjax.kernels.gated_streams.operands import Operands, Read

_MIB = 2**20


def obstacle(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels cannot run, or None."""
  tokens = Plan.of(read, operands).num_tokens
  if read.layout.spans_devices:
    tokens //= read.layout.num_shards("batch") * read.layout.num_shards("tokens")
  if tokens % TOKENS:
    return f"a device has {tokens} tokens, it takes multiples of {TOKENS}"
  plan = Plan.of(read, operands)
  if not plan.buffers:
    return (
      f"{TOKENS} tokens of {plan.num_streams} streams of width {plan.width} with gates of rank "
      f"{plan.rank} need {plan.vmem_bytes(1) / _MIB:.0f} MiB on the chip, it has "
      f"{plan.room / _MIB:.0f}"
    )
  return None
