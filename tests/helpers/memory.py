"""Memory of compiled programs by the compiler's figures."""

import jax


def total_bytes(compiled: jax.stages.Compiled) -> int:
  """Returns the bytes of arguments, outputs and temporaries on one device."""
  stats = compiled.memory_analysis()
  return sum(getattr(stats, f"{kind}_size_in_bytes") for kind in ("argument", "output", "temp"))
