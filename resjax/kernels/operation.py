"""The options of an operation, and the choice of one of its implementations."""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from resjax.base.sharding import Layout
from resjax.kernels import per_device

# D is a multiple of it: the channels of a register of a TPU, and the threads of a warpgroup.
LANES = 128
# A field of the tuples that an operation takes and returns. It holds an array, or what stands for
# it elsewhere: its shape, its tiles, a reference to its memory inside a kernel, or the position of
# its token axes.
Field = Any
# A reference to memory inside a Pallas kernel; JAX has no public type for it.
Ref = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """What every operation is told beside its arrays; one has a subclass with options of its own.

  Attributes:
    implementation: name of the implementation that runs.
    layout: mesh, and how token axes are split over it.
    interpret: False, or what the argument `interpret` of a Pallas call takes.
  """

  implementation: str = "reference"
  layout: Layout = dataclasses.field(default_factory=Layout)
  interpret: Any = False


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


def load(package: str, implementation: str, module: str) -> Any:
  """Imports a module of an implementation, whose dialect of Pallas nobody else loads."""
  return importlib.import_module(f"{package}.{implementation}.{module}")


def obstacle_of_streams(
  platform: str, like: jax.ShapeDtypeStruct, layout: Layout, interpret: Any
) -> str | None:
  """Returns why no kernel for a platform can read residual streams, or None.

  Args:
    platform: `tpu` or `gpu`.
    like: shape [..., D] and dtype of a stream.
    layout: mesh, and how token axes are split over it.
    interpret: whether kernels run in their interpreter, on any platform.
  """
  if layout.platform != platform and not interpret:
    return f"it needs platform {platform!r}, the mesh is on {layout.platform!r}"
  if like.dtype not in (jnp.bfloat16, jnp.float32):
    return f"the streams are {like.dtype}, it takes bfloat16 and float32"
  if like.shape[-1] % LANES:
    return f"the width {like.shape[-1]} (config.model.d_model) is no multiple of {LANES}"
  return per_device.obstacle(layout, like)
