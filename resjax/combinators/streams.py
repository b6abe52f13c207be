"""The base class of the systems with several residual streams."""

import abc
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from resjax.base import Array, PyTree, wide_dtype
from resjax.combinators.base import (
  Combinator,
  Layer,
  Norms,
  PreNorm,
  Stream,
  Streams,
  TokenContext,
  Views,
)
from resjax.combinators.checks import check_choice, check_option
from resjax.kernels import IMPLEMENTATIONS, repeated
from resjax.kernels.streams import (
  Coefficients,
  Pending,
  combined,
  stream_coefficients,
  stream_read,
  written,
)


class Reading(NamedTuple):
  """How the coefficients of a site come from its streams, see `stream_read`.

  Attributes:
    projection: φ [R, D, K] of all streams together, or [D, K] for each stream by itself, or None.
    parameters: arrays without token axes that `coefficients` gets.
    coefficients: (φ H, mean squares of H, parameters) -> p, M, b.
    site: if not None, `projection` is a stack [S, ...] of φ of all sites, and this one is used.
  """

  projection: Array | None
  parameters: PyTree
  coefficients: Coefficients
  site: int | None = None


class ResidualStreams(Combinator):
  """x = Σ_s p_s H_s;  H_r ← Σ_s M_rs H_s + b_r f(x), with R streams H and coefficients p, M, b.

  All streams start as copies of the embedding, the output is their sum. A subclass says in
  `reading` what p [R], M [R, R] and b [R] are, for a site or for every token at a site.

  A write waits for the next read, which applies it in the same pass over the streams. So the state
  has the streams [R, ..., D], the last output, and the M and b of its site: (R + 1) D values and
  R (R + 1) float32 coefficients per token. A stream lies in memory like any activation, its batch
  and token axes are sharded like theirs, and no axis is ever moved.

  Args:
    num_streams: R, at least 1.
    implementation: of `stream_read`; `auto` takes the best that can run.

  Raises:
    ValueError: an option out of range.
  """

  family = "streams"

  def __init__(self, *, num_streams: int = 4, implementation: str = "auto", **options: Any):
    super().__init__(**options)
    check_option("num_streams", num_streams, num_streams >= 1, "num_streams >= 1")
    self.implementation = check_choice("implementation", implementation, ("auto", *IMPLEMENTATIONS))
    self.num_streams = num_streams

  @abc.abstractmethod
  def reading(self, layer: Layer, site: str) -> Reading:
    """Returns how the coefficients of a site come from its streams.

    Args:
      layer: 0..L-1; may be traced.
      site: one of `sites`.
    """

  def coefficients(
    self, state: Pending, layer: Layer, site: str
  ) -> tuple[Float[Array, "R ..."], Float[Array, "R R ..."] | None, Float[Array, "R ..."]]:
    """Returns the coefficients of a site.

    Args:
      state: what `read` sees at the site.
      layer: 0..L-1; may be traced.
      site: one of `sites`.

    Returns:
      p [R], M [R, R] with a row for each new stream, or None for the identity, and b [R]; each with
      axes [...] behind its own, of size 1 if it is the same for all tokens.
    """
    return stream_coefficients(state, *self.reading(layer, site))

  def init(self, x: Stream, tokens: TokenContext | None = None) -> Pending:
    return self.settled(repeated(x, self.num_streams))

  def settled(self, streams: Streams) -> Pending:
    """Returns the state that has these streams, and no write that waits."""
    x, wide = streams[0], wide_dtype(streams)
    weights = jnp.eye(len(streams), len(streams) + 1, dtype=wide).reshape(-1, *(1,) * (x.ndim - 1))
    weights += jnp.sum(jnp.zeros_like(x, wide), axis=-1)[None]  # they lie as the tokens do
    return Pending(streams, weights, jnp.zeros_like(x))

  def streams(self, state: Pending) -> Streams:
    """Returns the streams of a state after the write that waits."""
    return written(state)

  def read(self, state: Pending, layer: Layer, site: str) -> tuple[Views, Any]:
    """See `Combinator.read`. The tape holds the streams that are read, and M and b."""
    return self._read(state, layer, site, None)

  def read_normed(self, state: Pending, layer: Layer, site: str, norms: Norms) -> tuple[Views, Any]:
    """See `Combinator.read_normed`. A single RMS norm of x is part of the read."""
    norm = norms.get("x")
    if not isinstance(norm, PreNorm):
      return super().read_normed(state, layer, site, norms)
    return self._read(state, layer, site, norm)

  def _read(
    self, state: Pending, layer: Layer, site: str, norm: PreNorm | None
  ) -> tuple[Views, Any]:
    x, *tape = self._stream_read(state, self.reading(layer, site), norm)
    return {"x": x}, tuple(tape)

  def _stream_read(
    self, state: Pending, reading: Reading, norm: PreNorm | None = None
  ) -> tuple[Array, Array, Array]:
    fused: dict[str, Any] = {} if norm is None else {"norm_gain": norm.scale, "norm_eps": norm.eps}
    implementation = None if self.implementation == "auto" else self.implementation
    return stream_read(state, *reading, layout=self.layout, implementation=implementation, **fused)

  def write(
    self, state: Pending, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> Pending:  # fmt: skip
    """See `Combinator.write`. It needs the tape."""
    streams, weights = tape
    return Pending(streams, weights, out)

  def final(self, state: Pending) -> Stream:
    # Columns of M are summed before the streams.
    return read_row(state, jnp.sum(state.rows[: self.num_streams], axis=0))


@partial(jax.checkpoint, prevent_cse=False)
def read_row(state: Pending, row: Array) -> Array:
  """Returns `combined` in the dtype of the streams."""
  return combined(state, row).astype(state.streams.dtype)


def one_hot_reads(num_sublayers: int, num_streams: int) -> Array:
  """Returns [sublayers, R], one at stream i mod R for sublayer i and zero elsewhere."""
  return jnp.asarray(np.eye(num_streams)[np.arange(num_sublayers) % num_streams])
