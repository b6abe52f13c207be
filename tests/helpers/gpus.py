"""A GPU that is not there: what is asked of one, and programs that are lowered for it."""

import jax


class Gpu:
  """What kernels ask of a device; where it does not tell its shared memory, that is an H100's."""

  device_kind, core_count = "a GPU", 132

  def __init__(self, capability="9.0", program_bytes=None):
    self.compute_capability = capability
    if program_bytes is not None:
      self.shared_memory_per_block_optin = program_bytes


def lowered(function, *arguments, platform="cuda"):
  """The text of a program for a platform."""
  return jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
