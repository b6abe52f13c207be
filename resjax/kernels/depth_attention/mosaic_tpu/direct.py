"""Depth attention on TPUs, in Pallas."""

import contextlib
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import use_abstract_mesh

from resjax.kernels.depth_attention.mosaic_tpu import direct_backward, direct_forward, tiles
from resjax.kernels.depth_attention.mosaic_tpu.direct_plan import Plan
from resjax.kernels.depth_attention.mosaic_tpu.tiles import Pass, TpuTiles
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.typing import Array, PyTree

PLATFORM = "tpu"


def obstacle(read: Read, operands: Operands) -> str | None:
  """Returns why the kernels cannot run, or None; operands [..., D] of all devices."""
  if operands.like.dtype == jnp.float16:
    return "the sources are float16, which TPUs do not load; bfloat16 and float32 they do"
  num_tokens = math.prod(operands.like.shape[:-1])
  passes = (Pass.of(name, read, operands, num_tokens) for name in ("forward", "backward"))
  return next(filter(None, map(tiles.obstacle, passes)), None)


def forward(
  read: Read, operands: Operands, tile_sizes: TpuTiles | None = None
) -> tuple[Array, Array | None, Stats]:
  """Runs the forward kernel with given or chosen tile sizes; see reference/direct.py."""
  plan = _plan("forward", read, operands, tile_sizes)
  return _call(read, direct_forward.forward, plan)(operands)


def backward(
  read: Read,
  operands: Operands,
  stats: Stats,
  d_out: Array,
  d_sources: PyTree,
  tile_sizes: TpuTiles | None = None,
) -> Cotangents:
  """Runs the backward kernel with given or chosen tile sizes; see reference/direct.py."""
  plan = _plan("backward", read, operands, tile_sizes)
  return _call(read, direct_backward.backward, plan)(operands, stats, d_out, d_sources)


def _plan(name: str, read: Read, operands: Operands, tile_sizes: TpuTiles | None) -> Plan:
  work = Pass.of(name, read, operands, operands.like.shape[0])
  return Plan(work, tile_sizes or tiles.choose(work), read.eps)


def _call(read: Read, run: Callable, plan: Plan) -> Callable:
  """Prepares a kernel for where it is called.

  Its compiler asks the mesh for the chip, which around one device no `shard_map` has announced. It
  runs once per element of a `vmap`: an axis of the grid for it would split the sums over tokens.
  """
  mesh = read.layout.mesh

  @jax.custom_batching.sequential_vmap
  def call(*arrays):
    announced = mesh is None or mesh.size > 1
    around = contextlib.nullcontext() if announced else use_abstract_mesh(mesh.abstract_mesh)
    with around:
      return run(read, plan, *arrays)

  return call
