"""Sizes of the kernels for TPUs, their tiles, and the steps within a tile that both passes take."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from resjax.base import Array
from resjax.base.hardware import TPU_CHIPS
from resjax.kernels.gated_streams.operands import Operands, Read
from resjax.kernels.mosaic_tpu import (
  ROWS,
  SUBLANES,
  TOKENS,
  Span,
  StreamPlan,
  chip_of,
  for_each_chunk,
  wide,
)
from resjax.kernels.operation import LANES, Ref

_SPARE = 4 * 2**20  # bytes on the chip that are left for registers that are spilled
_FEW = 4  # up to so many streams, a loop over them is written out


class Weights(NamedTuple):
  """The weights of a read as kernels take them; the reverse kernel writes their gradients alike.

  Attributes:
    gain: γ [R, 1, D] float32; its gradient is [R, SUBLANES, D], a sum of rows.
    inward: W_down and behind it W_inject, turned: [R, rows, D].
    outward: W_up [R, rank, D].
  """

  gain: Any
  inward: Any
  outward: Any


@dataclasses.dataclass(frozen=True)
class Plan(StreamPlan):
  """Sizes of a read of the rows of one device.

  Attributes:
    rank: r, rounded up to whole registers.
    injected: rows of W_inject: R rounded up to whole registers, or 0 without it.
    cores: of a device.
    vmem: bytes of on-chip memory of a core.
  """

  rank: int
  injected: int
  cores: int
  vmem: int

  @classmethod
  def of(cls, read: Read, operands: Operands) -> "Plan":
    """Returns the sizes of a read, whose token axes are counted as one."""
    like, count, chip = operands.like, len(operands.streams), TPU_CHIPS[chip_of(read.layout)]
    return cls(
      num_streams=count,
      num_tokens=math.prod(like.shape[:-1]),
      width=like.shape[-1],
      dtype=jnp.dtype(like.dtype),
      rank=_rounded(operands.down.shape[-1], LANES),
      injected=0 if operands.inject is None else _rounded(count, ROWS),
      cores=chip.device_cores,
      vmem=chip.vmem,
    )

  @property
  def most_parts(self) -> int:
    """A part for every core: each has gradients of the weights of its own."""
    return self.cores

  @property
  def rows(self) -> int:
    """The rows of W_down and W_inject together."""
    return self.rank + self.injected

  @property
  def chunk(self) -> int:
    """The channels that a step works on."""
    return LANES if self.width % (2 * LANES) else 2 * LANES

  @property
  def vmem_limit(self) -> int:
    """The bytes of on-chip memory that the compiler may give a kernel."""
    return self.vmem - _SPARE // 4

  @property
  def room(self) -> int:
    """The bytes of on-chip memory for what `vmem_bytes` counts."""
    return self.vmem_limit - _SPARE

  @property
  def buffers(self) -> int:
    """How many tiles of streams have room on the chip: 2, 1 or none."""
    return next((n for n in (2, 1) if self.vmem_bytes(n) <= self.room), 0)

  def vmem_bytes(self, buffers: int) -> int:
    """Returns the bytes of on-chip memory of the reverse kernel, which needs more than the forward.

    Args:
      buffers: 2 where streams are moved while the tile before is worked on, 1 where they are not.
    """
    count, size, products = self.num_streams, self.dtype.itemsize, self.rows + self.rank
    tile = TOKENS * self.width
    moved = buffers * (3 * count + 1) * tile * size
    weights = count * (products * (size + 4) + 2 * SUBLANES * 4) * self.width
    scratch = count * tile * size + tile * 4 + (count + 1) * TOKENS * self.chunk * 4
    numbers = TOKENS * (4 * self.rank + 2 * _rounded(self.rows, LANES)) * 4
    return moved + weights + scratch + numbers + 5 * TOKENS * _rounded(count, LANES) * 4

  def squeezed(self) -> pl.BlockSpec:
    """Returns tiles of z [T, rank]."""
    return pl.BlockSpec((TOKENS, self.rank), lambda p, i: (self.tile(p, i), 0))

  def logits(self) -> pl.BlockSpec:
    """Returns tiles of numbers per stream and token [R, T]."""
    return pl.BlockSpec((self.num_streams, TOKENS), lambda p, i: (0, self.tile(p, i)))

  def scales(self) -> Any:
    """Returns scratch for a number per stream and token, spread over the lanes of a chunk."""
    return pltpu.VMEM((self.num_streams, TOKENS, self.chunk), jnp.float32)

  def cost(self, products: int, streams: int, summed: bool) -> pl.CostEstimate:
    """Returns the cost of a kernel, for XLA's scheduler.

    Args:
      products: with each row of the weights together, for a channel of a token.
      streams: passes over [T, D].
      summed: whether gradients of weights are stored.
    """
    values = self.num_streams * self.num_tokens * self.width
    weights = self.num_streams * (self.rows + self.rank) * self.width
    numbers = (self.rank + self.num_streams * (self.injected > 0)) * self.num_tokens
    moved = streams * self.num_tokens * self.width + weights * self.grid[0]
    return pl.CostEstimate(
      flops=2 * products * values,
      transcendentals=values,
      bytes_accessed=moved * self.dtype.itemsize
      + 4 * (numbers + (weights * self.grid[0] if summed else 0)),
    )

  def weights(self, operands: Operands) -> Weights:
    """Returns the weights of a read as kernels take them."""
    _, gain, down, up, inject = operands
    count = self.num_streams
    gain = jnp.broadcast_to(gain.astype(jnp.float32), (count, self.width))
    inward = _padded(jnp.swapaxes(down, 1, 2).astype(self.dtype), self.rank)
    if inject is not None:
      inject = jnp.swapaxes(inject, 1, 2).astype(self.dtype)
      inward = jnp.concatenate([inward, _padded(inject, self.injected)], axis=1)
    return Weights(gain[:, None], inward, _padded(up.astype(self.dtype), self.rank))

  def gradients(self, operands: Operands, sums: Weights) -> Operands:
    """Returns the cotangents of the weights, from sums [parts, ...] over the tiles of each part."""
    _, gain, down, up, inject = operands
    rank = down.shape[-1]
    inward, outward = jnp.sum(sums.inward, axis=0), jnp.sum(sums.outward, axis=0)
    d_gain = jnp.sum(sums.gain, axis=(0, 2))
    if len(gain) < self.num_streams:
      d_gain = jnp.sum(d_gain, axis=0, keepdims=True)
    d_inject = None
    if inject is not None:
      d_inject = jnp.swapaxes(inward[:, self.rank : self.rank + self.num_streams], 1, 2)
      d_inject = d_inject.astype(inject.dtype)
    return Operands(
      None,
      d_gain.astype(gain.dtype),
      jnp.swapaxes(inward[:, :rank], 1, 2).astype(down.dtype),
      outward[:, :rank].astype(up.dtype),
      d_inject,
    )


def for_each_stream(count: int, run: Callable[[Array, Any], Any], carry: Any = None) -> Any:
  """Folds `carry = run(stream, carry)` over all streams."""
  return lax.fori_loop(0, count, run, carry, unroll=count <= _FEW)


def for_each_step(
  plan: Plan, run: Callable[[Span, Any], Any], carry: Any = None, at_once: int = 2
) -> Any:
  """Folds `carry = run(lanes, carry)` over all chunks of channels.

  Two chunks at once let products of one run beside arithmetic of the other.
  """
  return for_each_chunk(plan.width, plan.chunk, run, carry, at_once)


def find_scales(plan: Plan, eps: float, streams: Ref, scales: Ref) -> None:
  """Writes 1 / RMS(H_s) to scratch of `Plan.scales`."""

  def stream(s: Array, _: None) -> None:
    def chunk(lanes: Span, squares: Array) -> Array:
      x = wide(streams, s, slice(None), lanes)
      return squares + x * x

    squares = for_each_chunk(plan.width, LANES, chunk, jnp.zeros((TOKENS, LANES), jnp.float32), 4)
    mean = jnp.sum(squares, axis=1, keepdims=True) / plan.width
    scales[s] = jnp.broadcast_to(lax.rsqrt(mean + eps), (TOKENS, plan.chunk))

  for_each_stream(plan.num_streams, stream)


def _rounded(size: int, multiple: int) -> int:
  return -(-size // multiple) * multiple


def _padded(rows: Array, count: int) -> Array:
  return jnp.pad(rows, ((0, 0), (0, count - rows.shape[1]), (0, 0)))
