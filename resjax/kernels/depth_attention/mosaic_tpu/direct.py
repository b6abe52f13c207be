"""Depth attention on TPUs, in Pallas."""

import math
from functools import partial

import jax.numpy as jnp

from resjax.kernels.depth_attention.mosaic_tpu import direct_backward, direct_forward, tiles
from resjax.kernels.depth_attention.mosaic_tpu.call import prepared
from resjax.kernels.depth_attention.mosaic_tpu.direct_plan import Plan
from resjax.kernels.depth_attention.mosaic_tpu.tiles import Pass, TpuTiles
from resjax.kernels.depth_attention.operands import Cotangents, Operands, Read, Stats
from resjax.typing import Array, PyTree


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
  return prepared(read, partial(direct_forward.forward, read, plan))(operands)


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
  run = partial(direct_backward.backward, read, plan)
  return prepared(read, run)(operands, stats, d_out, d_sources)


def _plan(name: str, read: Read, operands: Operands, tile_sizes: TpuTiles | None) -> Plan:
  work = Pass.of(name, read, operands, operands.like.shape[0])
  return Plan(work, tile_sizes or tiles.choose(work), read.eps)
