"""How a kernel for TPUs is called, whatever stands around the call."""

import contextlib
from collections.abc import Callable

import jax
from jax.sharding import use_abstract_mesh

from resjax.kernels.depth_attention.operands import Read


def prepared(read: Read, run: Callable) -> Callable:
  """Returns `run` ready to be called on the rows of one device.

  The compiler of a kernel asks the mesh in context for the chip. A `shard_map` sets that mesh, but
  around a mesh of one device there is none, so the call sets it. It runs once per element of a
  `vmap`: an axis of the grid for it would split the sums over tokens.

  Args:
    read: says where it runs.
    run: takes and returns pytrees of arrays.
  """
  mesh = read.layout.mesh

  @jax.custom_batching.sequential_vmap
  def call(*arrays):
    alone = mesh.size == 1
    with use_abstract_mesh(mesh.abstract_mesh) if alone else contextlib.nullcontext():
      return run(*arrays)

  return call
