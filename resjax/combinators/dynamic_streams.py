"""Residual streams whose coefficients every token computes from all of its streams."""

import abc
import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from resjax.base import Array
from resjax.combinators.base import Layer, Stream, TokenContext
from resjax.combinators.checks import check_choice, check_option
from resjax.combinators.streams import Reading, ResidualStreams, one_hot_reads, read_row
from resjax.kernels.streams import Pending

_INITS = ("uniform", "identity", "one_hot", "home_stream")
_HEADS = ("sum", "mean", "learned", "previous")
_READ_SITES = ("own", "previous")
_SCALE = 0.01  # a at init
_FAR = -8.0  # logit of what an identity-like mix leaves out


@dataclasses.dataclass(frozen=True)
class Gates:
  """p = σ(z_pre) + read_eps, b = magnitude · σ(z_post) + write_eps, and M(z_res) of a subclass.

  It holds no parameters and no arrays and is hashable, so that a kernel can run it on the logits
  of a tile of tokens. Without a subclass M is the identity and there are no z_res.

  Attributes:
    num_streams: R.
    read_eps: added to p.
    write_eps: added to b.
    magnitude: the largest b.
  """

  num_streams: int
  read_eps: float = 0.0
  write_eps: float = 0.0
  magnitude: float = 2.0

  def __call__(
    self,
    projected: Float[Array, "K ..."],
    bias: Float[Array, "K ..."],
    scale: Float[Array, "gates ..."],
    copies: Float[Array, "1 ..."] | None = None,
  ) -> tuple[Float[Array, "R ..."], Float[Array, "R R ..."] | None, Float[Array, "R ..."]]:
    """Returns p, M with a row for each new stream, or None, and b.

    Args:
      projected: RMS(vec H) φ, float32 or wider: for p, for b, and for M.
      bias: with axes of size 1 for tokens.
      scale: a for p, for b, and for M if there is one. z = a ⊙ projected + bias.
      copies: 1 where the streams are copies of each other, which M cannot change; None: they are
        not. The gradient of the logits of M would be rounding errors there, which Adam
        scales up, so it is 0.
    """
    one, two = self.num_streams, 2 * self.num_streams
    pre = scale[:1] * projected[:one] + bias[:one]
    post = scale[1:2] * projected[one:two] + bias[one:two]
    mix = None
    if len(projected) > two:
      logits = scale[2:] * projected[two:] + bias[two:]
      if copies is not None:
        logits = jnp.where(copies > 0, jax.lax.stop_gradient(logits), logits)
      mix = self.mix(logits)
    read = jax.nn.sigmoid(pre) + self.read_eps
    return read, mix, self.magnitude * jax.nn.sigmoid(post) + self.write_eps

  def mix(self, logits: Float[Array, "M ..."]) -> Float[Array, "R R ..."]:
    """Returns M of z_res, with one logit for each of K - 2 R, if there are any."""
    raise NotImplementedError

  @property
  def identity(self) -> np.ndarray:
    """For every logit in z_res whether it is larger than the others where M is the identity."""
    return np.zeros(0, bool)

  @property
  def keeps_copies(self) -> bool:
    """Whether rows of M sum to 1 whatever its logits are, so that it maps copies to copies."""
    return True


class DynamicStreams(ResidualStreams):
  """p, M, b = gates(RMS(vec H) φ, bias, a) for every token at every site, see `Gates`.

  φ [R D, K], bias [K], and one scalar a for each of p, b and M. The first site mixes copies, so
  the parameters of its M have no effect and get no gradient. A subclass says what the gates are.

  Args:
    num_streams: R, at least 1.
    init: `uniform`, `identity`, `one_hot` or `home_stream`, see `MHC`.
    read_site: whose p a site reads by: its `own`, or that of the `previous` one.
    head: how streams become the output: `sum`, `mean`, or `learned`, which is one more read,
      Σ_s (σ(a' (RMS(vec H) φ')_s + bias'_s) + read_eps) H_s with φ' [R D, R], bias' [R], a' [1];
      or `previous`, a read by p of the last site, where read_site is that, too.
    eps: added to the mean square of the streams in their norm; > 0.

  Raises:
    ValueError: init, read_site, head or eps out of range.
  """

  needs_pre_norms = True
  per_layer = ("projection", "bias", "scale")
  decayed_parameters: tuple[str, ...] = ("projection",)

  def __init__(
    self, *, init: str = "uniform", read_site: str = "own", head: str = "sum", eps: float = 1e-6,
    rngs: nnx.Rngs, **options: Any,
  ):  # fmt: skip
    super().__init__(**options)
    check_choice("init", init, _INITS)
    self.read_site = check_choice("read_site", read_site, _READ_SITES)
    check_choice("head", head, _HEADS)
    known = head != "previous" or read_site == head
    check_option("head", head, known, "sum, mean or learned, or read_site=previous with it")
    check_option("eps", eps, eps > 0, "eps > 0")
    self.head, self.eps = head, eps
    # With ε the rows of M add up to 1 - ε, and b is 1 + ε.
    near = self.gates.magnitude == 2 and max(self.gates.read_eps, self.gates.write_eps) <= 1e-6
    self.equals_standard_at_init = near and init != "one_hot"
    sites, streams = (self.num_layers, len(self.sites)), self.num_streams
    bias = self._initial_bias(init)
    shape = (*sites, streams, self.d_model, bias.shape[-1])
    if init in ("one_hot", "home_stream"):
      projection = jnp.zeros(shape)
    else:
      projection = jax.random.normal(rngs.params(), shape) / math.sqrt(streams * self.d_model)
      # Streams that are written alike stay equal until the reads have told them apart.
      same = slice(streams, 2 * streams if self.gates.keeps_copies else None)
      projection = projection.at[..., same].set(0)
    self.projection = nnx.Param(projection, axes=("embed_param", None))
    self.bias = nnx.Param(bias.reshape(*sites, -1))
    self.scale = nnx.Param(jnp.full((*sites, 3 if len(self.gates.identity) else 2), _SCALE))
    if head == "learned":
      self.head_projection = nnx.Param(
        jax.random.normal(rngs.params(), (streams, self.d_model, streams))
        / math.sqrt(streams * self.d_model),
        axes=("embed_param", None),
      )
      self.head_bias = nnx.Param(jnp.full(streams, _mean_logit(streams)))
      self.head_scale = nnx.Param(jnp.full(1, _SCALE))
      self.decayed_parameters = (*self.decayed_parameters, "head_projection")

  @property
  @abc.abstractmethod
  def gates(self) -> Gates:
    """What makes coefficients of logits; it needs no parameters."""

  def _initial_bias(self, init: str) -> Array:
    """Returns [L · sites, K]."""
    sublayers, streams, identity = self.num_sublayers, self.num_streams, self.gates.identity
    home = 2 * one_hot_reads(sublayers, streams) - 1
    post = home if init == "one_hot" else jnp.zeros(streams)
    if init == "uniform":
      pre, res = jnp.zeros(streams), np.zeros(identity.shape)
    elif init == "home_stream":
      pre, res = 3 * home, np.where(identity, 3.0, -3.0)
    else:
      pre = home if init == "one_hot" else jnp.full(streams, _mean_logit(streams))
      res = np.where(identity, 0.0, _FAR)
    parts = [jnp.broadcast_to(part, (sublayers, part.shape[-1])) for part in (pre, post, res)]
    return jnp.concatenate(parts, axis=-1)

  def init(self, x: Stream, tokens: TokenContext | None = None) -> Pending:
    state = super().init(x, tokens)
    if self.read_site == "own":
      return state
    # No site stands before the first, which reads stream 0: a copy like all others.
    of_first = state.weights[: self.num_streams + 1]
    return state._replace(weights=jnp.concatenate([state.weights, of_first]))

  def reading(self, layer: Layer, site: str) -> Reading:
    bias, scale = self._row(self.bias, layer, site), self._row(self.scale, layer, site)
    projection = self._layer_row(self.projection, layer)
    # The devices first gather φ, since with φ split over D they would exchange a product per token.
    projection = self.layout.constrain(projection, *[None] * projection.ndim)
    copies = None
    if site == self.sites[0] and len(self.gates.identity) and self.gates.keeps_copies:
      copies = jnp.asarray([layer == 0], scale.dtype)
    gated = partial(_gated, self.gates, self.eps)
    return Reading(projection, (bias, scale, copies), gated, self.sites.index(site))

  def final(self, state: Pending) -> Stream:
    if self.head == "previous":
      return read_row(state, state.rows[-1])
    if self.head == "learned":
      written_rows = self.num_streams * (self.num_streams + 1)
      state = state._replace(weights=state.weights[:written_rows])
      projection = self.layout.constrain(self.head_projection[...], None, None, None)
      parameters = self.head_bias[...], self.head_scale[...]
      head = partial(_head, self.gates.read_eps, self.eps)
      return self._stream_read(state, Reading(projection, parameters, head))[0]
    total = super().final(state)
    return total / self.num_streams if self.head == "mean" else total


def _mean_logit(num_streams: int) -> float:
  """Returns the logit of 1 / R, so that a read is the mean."""
  return -math.log(max(num_streams - 1, 1))


def _gated(
  gates: Gates,
  eps: float,
  products: Array,
  mean_squares: Array,
  parameters: tuple[Array, Array, Array | None],
) -> tuple[Array, Array | None, Array]:
  return gates(_normed(eps, products, mean_squares), *parameters)


def _head(
  read_eps: float, eps: float, products: Array, mean_squares: Array, parameters: tuple[Array, Array]
) -> tuple[Array, None, Array]:
  """Returns p of the last read, after which nothing is written."""
  bias, scale = parameters
  shares = jax.nn.sigmoid(scale * _normed(eps, products, mean_squares) + bias) + read_eps
  return shares, None, jnp.zeros_like(shares)


def _normed(eps: float, products: Array, mean_squares: Array) -> Array:
  """Returns RMS(vec H) φ [K, ...]. The norm is a scalar per token, so it follows the product."""
  return products * jax.lax.rsqrt(jnp.mean(mean_squares, axis=0, keepdims=True) + eps)
