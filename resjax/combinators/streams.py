"""The base class of the systems with several residual streams."""

import abc
from typing import Any

import jax
import jax.numpy as jnp

from resjax.combinators.base import Combinator, Layer, TokenContext, Views, check_option
from resjax.combinators.numerics import scaled_add
from resjax.kernels.depth_attention import Sources, depth_sum
from resjax.typing import Array, wide_dtype


class ResidualStreams(Combinator):
  """x = Σ_s p_s H_s;  H_r ← Σ_s M_rs H_s + b_r f(x), with R streams H and coefficients p, M, b.

  All streams start as copies of the embedding, the output is their sum. A subclass says in
  `coefficients` what p [R], M [R, R] and b [R] are, for a site or for every token at a site.

  The state is one array [R, ..., D]: a stream lies in memory like any activation, its batch and
  token axes are sharded like theirs, and no axis is ever moved. Coefficients are float32 or
  wider. The reverse pass keeps streams, outputs and logits of the coefficients.

  Args:
    num_streams: R, at least 1.

  Raises:
    ValueError: num_streams out of range.
  """

  family = "streams"

  def __init__(self, *, num_streams: int = 4, **options: Any):
    super().__init__(**options)
    check_option("num_streams", num_streams, num_streams >= 1, "num_streams >= 1")
    self.num_streams = num_streams

  @abc.abstractmethod
  def coefficients(
    self, streams: Array, layer: Layer, site: str
  ) -> tuple[Array, Array | None, Array]:
    """Returns the coefficients of a site.

    Args:
      streams: [R, ..., D].
      layer: 0..L-1; may be traced.
      site: one of `sites`.

    Returns:
      p [R], M [R, R] with a row for each new stream, or None for the identity, and b [R]; each with
      axes [...] behind its own if it differs from token to token.
    """

  def init(self, x: Array, tokens: TokenContext | None = None) -> Array:
    """See `Combinator.init`."""
    return jnp.broadcast_to(x, (self.num_streams, *x.shape))

  def read(self, state: Array, layer: Layer, site: str) -> tuple[Views, Any]:
    """See `Combinator.read`. The tape holds M and b."""
    read, mix, write = self.coefficients(state, layer, site)
    sources = Sources(bank=state, num_valid=self.num_streams)
    return {"x": depth_sum(sources, read[..., None])}, (mix, write)

  def write(
    self, state: Array, layer: Layer, site: str, out: Array, *,
    normed: Views | None = None, tape: Any = None,
  ) -> Array:  # fmt: skip
    """See `Combinator.write`. It needs the tape."""
    mix, write = tape
    if mix is None:
      return jax.vmap(scaled_add, (0, None, 0))(write[..., None], out, state)
    sources = Sources((out,), state, self.num_streams)
    weights = jnp.concatenate([mix, write[:, None]], axis=1)  # row r makes stream r
    return jax.vmap(depth_sum, (None, 0))(sources, weights[..., None])

  def final(self, state: Array) -> Array:
    """See `Combinator.final`."""
    return jnp.sum(state.astype(wide_dtype(state)), axis=0).astype(state.dtype)


def one_hot_reads(num_sublayers: int, num_streams: int) -> Array:
  """Returns [sublayers, R], one at stream i mod R for sublayer i and zero elsewhere."""
  return jnp.eye(num_streams)[jnp.arange(num_sublayers) % num_streams]
