"""Flags of XLA for tests and for the processes that they start; imports nothing of JAX."""

import importlib.util

# The same program and memory plan, machine code left unoptimised: a test compiles more than it
# runs. Not where libtpu is, whose compiler would take the flag for its own.
QUICK = "" if importlib.util.find_spec("libtpu") else "--xla_backend_optimization_level=0"


def devices(count: int) -> str:
  """Returns the flags for so many devices of a CPU."""
  return f"--xla_force_host_platform_device_count={count} {QUICK}".strip()
