"""What a read of residual streams takes, keeps for the reverse pass and returns.

Token axes are written [...]: [B, T] for a model, [T] inside a kernel. R is the number of streams.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from resjax.base import Array, PyTree, wide_dtype
from resjax.kernels.operation import Field, Options
from resjax.kernels.sums import sum_of_products

# Up to so many streams, sums that are written out are faster on a CPU; their code grows as R².
FEW = 4
# coefficients(products, mean squares, parameters) -> p [R, ...], M [R, R, ...] or None for the
# identity, and b [R, ...]. Arrays have token axes behind those named here, parameters have as many
# axes of size 1. A kernel calls it on tiles, so it may use nothing but arithmetic, sums over the
# axes in front, and slices and concatenations of them.
Coefficients = Callable[[Array | None, Array | None, PyTree], tuple[Array, Array | None, Array]]


class Pending(NamedTuple):
  """Streams to which the last write has not been applied: H_r ← Σ_s M_rs H_s + b_r o.

  Attributes:
    streams: H [R, ..., D].
    weights: [R (R + 1), ...], float32 or wider: for every new stream r the row M_r and then b_r.
      With one row more, [(R + 1)², ...], the last says what is read next: Σ_r p_r M_r, Σ_r p_r b_r.
    out: the output o of the branch [..., D].
  """

  streams: Field
  weights: Field
  out: Field

  @property
  def rows(self) -> Float[Array, "_ sources ..."]:
    """The weights as a matrix of R or R + 1 rows, with a column for each stream and one for o."""
    return self.weights.reshape(-1, len(self.streams) + 1, *self.weights.shape[1:])

  @property
  def has_read(self) -> bool:
    """Whether the last row says what is read next, see `weights`."""
    return len(self.weights) == (len(self.streams) + 1) ** 2


class Operands(NamedTuple):
  """The arrays of a read.

  Attributes:
    pending: `Pending`.
    projection: φ of all sites of a layer [S, R, D, K] or [S, D, K], or None; `at` takes the φ of
      one site.
    parameters: of the coefficients: a tree of arrays without token axes.
    gain: [D] of the norm of the read, or None.
  """

  pending: Field
  projection: Field
  parameters: Field
  gain: Field

  @property
  def like(self) -> jax.ShapeDtypeStruct:
    """The shape [..., D] and dtype of a stream."""
    streams = self.pending.streams
    return jax.ShapeDtypeStruct(streams.shape[1:], streams.dtype)

  def at(self, site: int) -> "Operands":
    """Returns the operands with φ [R, D, K] or [D, K] of a site."""
    return self if self.projection is None else self._replace(projection=self.projection[site])


class Stats(NamedTuple):
  """What the reverse pass keeps of a read beside its operands; None without a projection.

  Attributes:
    products: H φ: [K, ...] of all streams together, or [R, K, ...] where they share φ [D, K].
    mean_squares: of every stream [R, ...].
  """

  products: Field
  mean_squares: Field


@dataclasses.dataclass(frozen=True)
class Read(Options):
  """The static options of a read.

  Attributes:
    coefficients: see `Coefficients`.
    site: index of the site, which selects φ.
    norm_eps: number added to the mean square of the read in its norm.
  """

  coefficients: Coefficients
  site: int
  norm_eps: float


def written(pending: Pending) -> Float[Array, "R *tokens D"]:
  """Returns the streams after the write, in their dtype."""
  streams, weights, out = pending
  wide, count = wide_dtype(streams), len(streams)
  if count > FEW:
    sources = jnp.concatenate([streams, out[None]]).astype(wide)
    square = pending.rows[:count, ..., None]
    return jnp.sum(square * sources[None], axis=1).astype(streams.dtype)
  parts = [*(streams[s].astype(wide) for s in range(count)), out.astype(wide)]
  rows = []
  for first in range(0, count * (count + 1), count + 1):
    terms = [weights[first + s][..., None] * part for s, part in enumerate(parts)]
    rows.append(sum(terms[1:], terms[0]).astype(streams.dtype))
  return jnp.stack(rows)


def combined(pending: Pending, row: Float[Array, "sources ..."]) -> Float[Array, "*tokens D"]:
  """Returns Σ_s row_s H_s + row_R o of the streams before the write, float32 or wider."""
  streams, _, out = pending
  columns = row[..., None]
  sum_of_streams = sum_of_products(columns[:-1], streams)
  return sum_of_streams + columns[-1] * out.astype(sum_of_streams.dtype)


def in_parts(x: Array) -> tuple[Array, Array]:
  """Returns two bfloat16 arrays, the sum of which is the float32 array x to 16 bits.

  XLA may drop a conversion to bfloat16 and back, but not `reduce_precision`.
  """
  high = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
  return high.astype(jnp.bfloat16), (x - high).astype(jnp.bfloat16)


def each_coefficient(
  read: Read, num_streams: int, stats: Stats, parameters: PyTree, tokens: tuple[int, ...]
) -> tuple[Array, Array, Array]:
  """Returns p [R, ...], M [R, R, ...] and b [R, ...] for all tokens, see `all_coefficients`."""
  p, mix, b = read.coefficients(stats.products, stats.mean_squares, parameters)
  b = jnp.broadcast_to(b, (num_streams, *tokens))
  if mix is None:
    one, zero = jnp.ones_like(b[0]), jnp.zeros_like(b[0])
    rows = range(num_streams)
    mix = jnp.stack([jnp.stack([one if r == s else zero for s in rows]) for r in rows])
  mix = jnp.broadcast_to(mix, (num_streams, num_streams, *tokens))
  return jnp.broadcast_to(p, (num_streams, *tokens)), mix, b


def all_coefficients(
  read: Read, num_streams: int, stats: Stats, parameters: PyTree, tokens: tuple[int, ...]
) -> tuple[Array, Array]:
  """Returns p [R, ...] and `Pending.weights` [R (R + 1), ...] for all tokens.

  Args:
    read: options.
    num_streams: R.
    stats: of the streams.
    parameters: with an axis of size 1 for each token axis.
    tokens: sizes of the token axes.
  """
  p, mix, b = each_coefficient(read, num_streams, stats, parameters, tokens)
  weights = jnp.concatenate([mix, b[:, None]], axis=1)
  return p, weights.reshape(-1, *tokens)
