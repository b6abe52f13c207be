"""How a kernel for TPUs is called, whatever stands around the call."""

import contextlib
from collections.abc import Callable

import jax
from jax.sharding import use_abstract_mesh

from resjax.kernels.depth_attention.operands import Read


def prepared(read: Read, run: Callable) -> Callable:
  """Returns `run` ready to be called on the rows of one device.

  The compiler of a kernel asks the mesh for the chip, which around one device no `shard_map` has
  announced. It runs once per element of a `vmap`: an axis of the grid for it would split the sums
  over tokens.

  Args:
    read: says where it runs.
    run: takes and returns pytrees of arrays.
  """
  mesh = read.layout.mesh

  @jax.custom_batching.sequential_vmap
  def call(*arrays):
    announced = mesh is None or mesh.size > 1
    around = contextlib.nullcontext() if announced else use_abstract_mesh(mesh.abstract_mesh)
    with around:
      return run(*arrays)

  return call
