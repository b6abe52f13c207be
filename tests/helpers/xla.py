"""Flags of XLA for tests and for the processes that they start; imports nothing of JAX."""

import importlib.metadata


def _quick() -> str:
  """Flags for the same program and memory plan in machine code that is sooner there, and slower.

  A test compiles more than it runs. What libtpu compiles for a TPU is the same with them.
  """
  flags = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
  flags.append("--xla_cpu_parallel_codegen_split_count=1")  # no 32 modules of a small program
  if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones do not know it
    flags.append("--xla_cpu_use_fusion_emitters=false")  # which take half of the time
  return " ".join(flags)


QUICK = _quick()


def devices(count: int) -> str:
  """Returns the flags for so many devices of a CPU."""
  return f"--xla_force_host_platform_device_count={count} {QUICK}".strip()
