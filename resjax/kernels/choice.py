"""The choice of one of the implementations of an operation."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from resjax.sharding import Layout


def choose(
  what: str,
  implementations: Sequence[str],
  implementation: str | None,
  obstacle: Callable[[str], str | None],
  layout: Layout,
  interpret: Any,
) -> str:
  """Returns the name of the implementation that runs an operation.

  Args:
    what: words for the operation in error messages.
    implementations: those that there are, in order of preference.
    implementation: one of them; or None, the first that can run, which is `reference` where there
      are several devices and no mesh.
    obstacle: gives the reason why one of them cannot run, or None.
    layout: mesh, and how token axes are split over it.
    interpret: whether kernels run in their interpreter.

  Raises:
    ValueError: there is no such implementation, or it cannot run here.
  """
  if implementation is None:
    if not layout.has_mesh and jax.device_count() > 1 and not interpret:
      # XLA cannot partition a kernel, and without a mesh nothing says how tokens are split.
      return "reference"
    return next(name for name in implementations if obstacle(name) is None)
  if implementation not in implementations:
    raise ValueError(
      f"implementation={implementation!r} of {what} is not known; allowed: "
      f"{', '.join(implementations)}, or None for the best"
    )
  reason = obstacle(implementation)
  if reason:
    raise ValueError(
      f"implementation={implementation!r} of {what} cannot run: {reason}; "
      "config implementation=auto, or None in Python, takes the best that can"
    )
  return implementation
