"""Sizes of the kernels for TPUs, their tiles, and the steps within a tile that both passes take."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from resjax.base import Array, PyTree
from resjax.kernels.mosaic_tpu import (
  ROWS,
  SUBLANES,
  TOKENS,
  Span,
  StreamPlan,
  columns,
  dot,
  for_each_chunk,
  for_each_row_group,
  wide,
)
from resjax.kernels.operation import LANES, Ref
from resjax.kernels.streams.operands import Operands

PARTS = 2  # φ as bfloat16: its first 8 bits, and the next 8
Chunks = Callable[[Span, Span], Array]  # rows and lanes of a tile -> a chunk of it in float32


class Inputs(NamedTuple):
  """What a read takes, on one device; the reverse kernel writes cotangents in the same order.

  The T tokens are the last axis of coefficients.

  Attributes:
    streams: before the write that waits [R, T, D].
    weights: M and b of that write [R (R + 1), T] float32.
    out: the output that it adds [T, D].
    phi: φ of all sites as `phi.laid_out` returns it, or None.
    parameters: of the coefficients, each broadcast over the lanes.
    gain: of the norm of the read [1, D] float32, or None.
  """

  streams: Any
  weights: Any
  out: Any
  phi: Any
  parameters: Any
  gain: Any


@dataclasses.dataclass(frozen=True)
class Plan(StreamPlan):
  """Sizes of a read of the rows of one device.

  Attributes:
    num_columns: K; 0 without a projection.
    shared: whether all streams have one φ [D, K].
    packed: whether coefficients [n, TOKENS] fill registers, n being multiples of `SUBLANES`. Else
      they are [n, 1, TOKENS], and a register has one of them.
  """

  num_columns: int
  shared: bool
  packed: bool

  @classmethod
  def of(cls, operands: Operands) -> "Plan":
    """Returns the sizes of a read, whose token axes are counted as one."""
    like, phi = operands.like, operands.projection
    count, tokens = len(operands.pending.streams), math.prod(like.shape[:-1])
    columns, shared = (0, False) if phi is None else (phi.shape[-1], phi.ndim == 2)
    whole = phi is not None and not shared and count % SUBLANES == 0
    packed = whole and all(p.ndim for p in jax.tree.leaves(operands.parameters))
    return cls(count, tokens, like.shape[-1], jnp.dtype(like.dtype), columns, shared, packed)

  def narrowed(self, width: int) -> "Plan":
    """Returns the plan of the same read over `width` of its channels."""
    return dataclasses.replace(self, width=width)

  @property
  def most_parts(self) -> int:
    """As many parts as any device has cores."""
    return 2

  @property
  def num_weights(self) -> int:
    """The number of coefficients of a write, R (R + 1)."""
    return self.num_streams * (self.num_streams + 1)

  @property
  def rows(self) -> int:
    """K, rounded up to whole registers."""
    return -(-self.num_columns // ROWS) * ROWS

  @property
  def projections(self) -> int:
    """The number of arrays [K, D] that φ consists of."""
    return 1 if self.shared else self.num_streams

  @property
  def num_products(self) -> int:
    """The products that are kept of a token."""
    return self.num_columns * (self.num_streams if self.shared else 1)

  @property
  def num_squares(self) -> int:
    """The mean squares that are kept of a token."""
    return self.num_streams if self.num_columns else 0

  @property
  def split(self) -> bool:
    """Whether products run on bfloat16, φ in two parts; else in float32."""
    return self.dtype == jnp.bfloat16

  @property
  def token_axes(self) -> tuple[int, ...]:
    """The token axes of coefficients on the chip."""
    return (TOKENS,) if self.packed else (1, TOKENS)

  @property
  def phi_bytes(self) -> int:
    """The bytes of φ of one site in float32, or in two bfloat16 parts; 0 without a φ."""
    return 4 * self.projections * self.rows * self.width

  @property
  def stream_bytes(self) -> int:
    """The bytes of one array [T, D]."""
    return self.num_tokens * self.width * self.dtype.itemsize

  def numbers(self, rows: int) -> pl.BlockSpec | None:
    """Returns tiles of numbers per token [rows, T], None without rows."""
    return pl.BlockSpec((rows, TOKENS), lambda p, i: (0, self.tile(p, i))) if rows else None

  def number_bytes(self, rows: int) -> int:
    """Returns the bytes of numbers per token [rows, T]."""
    return 4 * rows * self.num_tokens

  def on_lanes(self, tree: PyTree) -> PyTree:
    """Returns parameters with `token_axes` behind their own, as a kernel takes them."""
    axes = self.token_axes
    return jax.tree.map(
      lambda p: jnp.broadcast_to(
        p.astype(jnp.float32).reshape(*p.shape, *(1,) * len(axes)), (*p.shape, *axes)
      ),
      tree,
    )


def zeros() -> Array:
  """Returns a chunk [ROWS, LANES] of zeros."""
  return jnp.zeros((ROWS, LANES), jnp.float32)


def chunks_of(streams: Ref, *others: Ref) -> list[Chunks]:
  """Returns for every stream, and then for arrays [tokens, D], a function to its chunks."""
  return [
    *(partial(wide, streams, r) for r in range(len(streams))),
    *(partial(wide, other) for other in others),
  ]


def write_streams(plan: Plan, streams: Ref, out: Ref, weights: Ref, target: Ref) -> None:
  """Writes Σ_s M_rs H_s + b_r o to target [R, TOKENS, D], weights being columns."""
  count = plan.num_streams

  def group(_: Array, rows: Span) -> None:
    for r in range(count):
      factors = [columns.spread(weights, rows, r * (count + 1) + s) for s in range(count + 1)]

      def chunk(lanes: Span, _: Any, r: int = r, factors: list[Array] = factors) -> None:
        total = factors[count] * wide(out, rows, lanes)
        for s in range(count):
          total += factors[s] * wide(streams, s, rows, lanes)
        target[r, rows, lanes] = total.astype(target.dtype)

      for_each_chunk(plan.width, LANES, chunk)

  for_each_row_group(TOKENS, group)


def mix(plan: Plan, sources: list[Chunks], weights: Ref, rows: Span, target: Ref) -> Array:
  """Writes Σ_r p_r H_r of a group of rows to target [ROWS, D]; returns its squares in chunks."""
  factors = [columns.spread(weights, rows, r) for r in range(len(sources))]

  def chunk(lanes: Span, squares: Array) -> Array:
    total = factors[0] * sources[0](rows, lanes)
    for factor, source in zip(factors[1:], sources[1:], strict=True):
      total += factor * source(rows, lanes)
    target[:, lanes] = total
    return squares + total * total

  return for_each_chunk(plan.width, LANES, chunk, zeros())


def product(plan: Plan, stream: Array, phi: Array) -> Array:
  """Returns φ H [rows, TOKENS] of a stream [TOKENS, D] and a projection as `Phi` keeps it."""
  found = columns.turned(dot(stream, phi, 1, 1))
  if not plan.split:
    return found[: plan.rows]
  return found[: plan.rows] + found[plan.rows : PARTS * plan.rows]


def product_back(plan: Plan, d: Array, phi: Array) -> Array:
  """Returns φᵀ d [TOKENS, D] of d [rows, TOKENS] and a projection as `Phi` keeps it."""
  if not plan.split:
    return dot(d, phi, 0, 0)
  high, low = in_parts(d)
  left, right = [high, high, low], [phi, phi[: plan.rows]]
  return dot(jnp.concatenate(left), jnp.concatenate(right), 0, 0)


def product_phi(plan: Plan, d: Array, stream: Array) -> Array:
  """Returns d H [rows, D] of d [rows, TOKENS], summed over tokens."""
  if not plan.split:
    return dot(d, stream, 1, 0)
  return dot(jnp.concatenate(in_parts(d), axis=1), jnp.concatenate([stream, stream]), 1, 0)


def in_parts(x: Array) -> tuple[Array, Array]:
  """Returns what `operands.in_parts` does, inside a kernel, where its operation does not exist."""
  high = x.astype(jnp.bfloat16)
  return high, (x - high.astype(jnp.float32)).astype(jnp.bfloat16)
