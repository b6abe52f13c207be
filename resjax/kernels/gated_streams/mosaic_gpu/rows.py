"""Launches of the kernels for gated reads, their rows, and steps within a token that they share."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from resjax.base import Array
from resjax.kernels.gated_streams.operands import Operands, Read
from resjax.kernels.mosaic_gpu import ChannelSums, GpuTiles, Ring, Stream, call, row_ops
from resjax.kernels.operation import Field, Ref


def launch(
  read: Read, kernel: Any, sizes: GpuTiles | None, streams: Array, name: str, **arrays: Any
) -> call.Results:
  """Runs a kernel on the tokens of folded streams [R, T, D / 128, 128]."""
  assert sizes is not None  # obstacles.py refuses reads without any
  like = jax.ShapeDtypeStruct(streams.shape[1:], streams.dtype)
  return call.launch(read, kernel, sizes, like, name, **arrays)


def by_token(streams: Array) -> jax.ShapeDtypeStruct:
  """Returns the shape [T, R, D / 128, 128] of what belongs to folded streams [R, T, ...]."""
  count, tokens, *row = streams.shape
  return jax.ShapeDtypeStruct((tokens, count, *row), streams.dtype)


def numbers(streams: Array) -> jax.ShapeDtypeStruct:
  """Returns the shape of a float32 number per token and stream [T, R]."""
  return jax.ShapeDtypeStruct(streams.shape[1::-1], jnp.float32)


def wide_gain(operands: Operands) -> Array:
  """Returns γ of every stream, folded [R, D / 128, 128] float32."""
  count, width = len(operands.streams), operands.streams.shape[-1]
  return call.fold(jnp.broadcast_to(operands.gain.astype(jnp.float32), (count, width)))


def token_rows(ref: Field) -> tuple[Stream, ...]:
  """Returns where the R rows of a token in [T, R, D / 128, 128] lie."""
  return tuple(Stream(partial(_row, ref, s)) for s in range(ref.shape[1]))


def _row(ref: Ref, stream: int, token: Array) -> Ref:
  return ref.at[token, stream]


def inverse_rms(ring: Ring, sums: ChannelSums, step: Array, count: int, eps: float) -> list[Array]:
  """Returns 1 / RMS of the streams of a token, which are at the first positions of a ring."""
  groups = ring.rows.shape[1]

  def add(index: Array, squares: tuple[Array, ...]) -> tuple[Array, ...]:
    parts = (ring.load_part(step, s, index) for s in range(count))
    return tuple(total + part * part for total, part in zip(squares, parts, strict=True))

  squares = row_ops.each_part(groups, add, row_ops.zero_parts(groups, count))
  totals = summed(sums, squares)
  return [jax.lax.rsqrt(total / (groups * row_ops.LANES) + eps) for total in totals]


def summed(sums: ChannelSums, parts: tuple[Array, ...]) -> list[Array]:
  """Returns the sums over channels of rows that every thread has added up."""
  for place, part in enumerate(parts):
    sums.put(place, (part,))
  sums.reduce()
  return [sums[place] for place in range(len(parts))]


def sigmoid(x: Array) -> Array:
  """Returns 1 / (1 + exp(-x))."""
  return 1 / (1 + jnp.exp(-x))
