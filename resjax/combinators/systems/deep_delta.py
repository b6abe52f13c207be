"""Deep Delta Learning: a sublayer's output is a direction along which the stream is rewritten."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Float

from resjax.base import Array, aligned, wide_dtype
from resjax.combinators.base import Combinator, Layer, Stream, Streams, TokenContext, Views
from resjax.combinators.checks import check_flag, check_option
from resjax.combinators.delta_cache import DeltaCache
from resjax.combinators.numerics import Number, project, recomputed
from resjax.combinators.short_conv import expand, pool
from resjax.kernels import repeated

COMPRESSORS = ("none", "channel", "token")
VALUES = ("linear", "sigmoid")
_SIGMOID_SCALE = 4.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeltaState:
  """The depth state of `DeepDelta`.

  Attributes:
    x: X [R, B, T, D].
    segment_ids: the segments of X's tokens [B, T], or [B, P + T] with a cache; None if no token
      is mixed later.
    cache: in decoding, the cache for the tokens that follow, as far as it is filled; else None.
  """

  x: Array
  segment_ids: Array | None = None
  cache: DeltaCache | None = None


class DeepDelta(Combinator):
  """X ← X + β k (vᵀ − kᵀX), an erase and a write along k, the direction of the branch's output o.

  X is R = value_width rows of width D per token. With c the normalised input of the branch:

    x_in = compress(X) [D],  o = branch(c),  k = o / sqrt(‖o‖² + eps²),
    β = 2 σ(w_β · c + b_β) in (0, 2),  v = W_v c [R].

  β = 0 keeps X, 1 overwrites what X holds along k by v, 2 reflects it. The norm of o is discarded.
  R = 1 has x_in = X. For R > 1 every site and the output have a compressor:

    channel  x_in,d = Σ_r m_rd X_rd
    token    x_in,d = Σ_r p_r Σ_s c_srd X_rd of s tokens before, s < kernel_size

  and X starts as R copies of the embedding, or (embedding_expansion) as R short causal
  convolutions of it, X_rd = Σ_s e_srd x_d of s tokens before. Taps do not cross segments.

  State: X, R D values per token (and segment ids, where given and needed). In decoding the token
  compressor keeps kernel_size − 1 past X per sublayer and for the output, the expansion as many
  embeddings, the others nothing. Parameters: D (R + 1) + 1 per sublayer (R more with a sigmoid v;
  (D + 1) beta_hidden for β instead of D); per compressor R D (channel) or (kernel_size D + 1) R
  (token); kernel_size R D for the expansion.

  Init: w_β, W_v and with beta_hidden W_in, w_out ~ N(0, 1/(4 D)), b_β by beta_init; compressors
  average over R and look at the current token alone; the expansion copies. Not equal to
  `standard`: nothing adds o.

  The gradient norm at init grows by about 1.2 times per layer: only the direction of o is used, and
  ∂k/∂o = (I − k kᵀ) / ‖o‖ is large where o is small. A decoder of width 32 with matrices of
  deviation 0.02 has a norm of 21 with 6 layers, 7e2 with 24 and 8e7 with 96, and with some hundreds
  it is infinite in float32. With 96 layers beta_init=0.1 makes it 2e2, and 0.01 makes it 3, as does
  eps=0.1, which bounds ∂k/∂o by 1 / eps; matrices of deviation 0.2 or value="sigmoid" do not help.

  The released code differs from the paper: v = 4 σ(W_v x_in + b), from the input without norm
  (value="sigmoid"); one compressor for all sites of a layer (shared_compressor); its channel
  compressor writes m as a convolution along R and a read vector, the same maps with other
  parameters (not offered); it can compute β = 2 σ(w_out · tanh(W_in c) + b_β) by two layers
  (beta_hidden=128; figures for that alone were not found); and it draws compressors from
  N(0, 1/(4 D)), which do not average.

  Args:
    value_width: R, at least 1.
    compressor: `channel` or `token`; `none` for value_width 1, and only there.
    kernel_size: taps of the convolutions over tokens, at least 2.
    embedding_expansion: whether X starts from short convolutions; needs value_width > 1.
    shared_compressor: whether the sites of a layer share one compressor.
    value: `linear`, v = W_v c, or `sigmoid`, v = 4 σ(W_v x_in + b).
    beta_init: β where w_β · c = 0, in (0, 2).
    beta_hidden: the width between the two layers of β; 0: one layer, w_β.
    eps: of k, > 0; compared with ‖o‖.

  Raises:
    ValueError: an option out of range.

  Source: Deep Delta Learning, arXiv 2601.00417; defaults are its DDL (channel compressor with
  embedding expansion).
  """

  family = "gates"
  equals_standard_at_init = False
  # These are plain linear maps. Decay would pull compressors away from a mean, expansions from a
  # copy.
  decayed_parameters: tuple[str, ...] = ("beta_weight", "value_weight")

  def __init__(
    self,
    *,
    value_width: int = 4,
    compressor: str = "channel",
    kernel_size: int = 4,
    embedding_expansion: bool = True,
    shared_compressor: bool = False,
    value: str = "linear",
    beta_init: float = 1.0,
    beta_hidden: int = 0,
    eps: float = 1e-5,
    rngs: nnx.Rngs,
    **options: Any,
  ):
    super().__init__(**options)
    check_option("value_width", value_width, value_width >= 1, "value_width >= 1")
    allowed = COMPRESSORS[:1] if value_width == 1 else COMPRESSORS[1:]
    given = f"{' or '.join(map(repr, allowed))} with value_width={value_width}"
    self.compressor = check_option("compressor", compressor, compressor in allowed, given)
    expands = not embedding_expansion or value_width > 1
    check_option("embedding_expansion", embedding_expansion, expands, "False with value_width=1")
    check_option("kernel_size", kernel_size, kernel_size >= 2, "kernel_size >= 2")
    self.value = check_option("value", value, value in VALUES, " or ".join(map(repr, VALUES)))
    check_option("beta_init", beta_init, 0 < beta_init < 2, "0 < beta_init < 2")
    check_option("beta_hidden", beta_hidden, beta_hidden >= 0, "beta_hidden >= 0")
    self.eps = check_option("eps", eps, eps > 0, "eps > 0")
    self.embedding_expansion = check_flag("embedding_expansion", embedding_expansion)
    self.shared_compressor = check_flag("shared_compressor", shared_compressor)
    self.value_width = value_width
    self.kernel_size = kernel_size
    self.beta_hidden = beta_hidden
    self._make_update(beta_init, rngs)
    self._make_compressors()
    if embedding_expansion:
      self.expand = nnx.Param(self._identity_taps())

  def _make_update(self, beta_init: float, rngs: nnx.Rngs) -> None:
    per_site = (self.num_layers, len(self.sites))
    draw = nnx.initializers.normal(0.5 / math.sqrt(self.d_model))
    width = (self.value_width, self.d_model)
    beta_width = self.beta_hidden or self.d_model
    self.beta_weight = nnx.Param(draw(rngs.params(), (*per_site, beta_width)))
    self.beta_bias = nnx.Param(jnp.full(per_site, math.log(beta_init / (2 - beta_init))))
    self.value_weight = nnx.Param(draw(rngs.params(), (*per_site, *width)))
    self.per_layer = ("beta_weight", "beta_bias", "value_weight")
    if self.value == "sigmoid":
      self.value_bias = nnx.Param(jnp.zeros((*per_site, self.value_width)))
      self.per_layer += ("value_bias",)
    if self.beta_hidden:
      shape = (*per_site, self.d_model, self.beta_hidden)
      self.beta_in = nnx.Param(draw(rngs.params(), shape))
      self.per_layer += ("beta_in",)
      self.decayed_parameters += ("beta_in",)

  def _make_compressors(self) -> None:
    """Makes a compressor for every site or layer, and one for the output."""
    per_site = (self.num_layers, 1 if self.shared_compressor else len(self.sites))
    if self.compressor == "channel":
      mean = jnp.full((self.value_width, self.d_model), 1 / self.value_width)
      self.mix = nnx.Param(jnp.tile(mean, (*per_site, 1, 1)))
      self.final_mix = nnx.Param(mean)
      self.per_layer += ("mix",)
    if self.compressor == "token":
      mean = jnp.full(self.value_width, 1 / self.value_width)
      self.pool = nnx.Param(jnp.tile(mean, (*per_site, 1)))
      self.taps = nnx.Param(jnp.tile(self._identity_taps(), (*per_site, 1, 1, 1)))
      self.final_pool = nnx.Param(mean)
      self.final_taps = nnx.Param(self._identity_taps())
      self.per_layer += ("pool", "taps")

  def _identity_taps(self) -> Array:
    """Returns filters [kernel_size, R, D] that give the current token."""
    return jnp.zeros((self.kernel_size, self.value_width, self.d_model)).at[0].set(1.0)

  def init(self, x: Stream, tokens: TokenContext | None = None) -> DeltaState:
    tokens = TokenContext() if tokens is None else tokens
    cache, segment_ids = tokens.cache, tokens.segment_ids
    if cache is not None:
      new = jnp.ones(x.shape[:2], jnp.int32) if segment_ids is None else segment_ids
      segment_ids = jnp.concatenate([cache.segment_ids, new], axis=1)
    stream = repeated(x, self.value_width)
    if self.embedding_expansion:
      past = None if cache is None else cache.embeddings
      stream = expand(x, self.expand[...], segment_ids, past)
      if cache is not None:
        cache = cache.with_embeddings(x, cache.counts(segment_ids))
    mixes_later = self.compressor == "token" or cache is not None
    return DeltaState(stream, segment_ids if mixes_later else None, cache)

  def read(self, state: DeltaState, layer: Layer, site: str) -> tuple[Views, Any]:
    """See `Combinator.read`. The tape is x_in."""
    if self.compressor == "none":
      return {"x": state.x[0]}, state.x[0]
    past = None if state.cache is None else state.cache.read(self._sublayer(layer, site))
    x = pool(state.x, self._filters(layer, site), state.segment_ids, past)
    return {"x": x}, x

  def write(
    self, state: DeltaState, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> DeltaState:  # fmt: skip
    """See `Combinator.write`. It needs `normed` and `tape`."""
    if normed is None or tape is None:
      raise ValueError("combinator 'deep_delta' needs write(..., normed=views, tape=tape)")
    context = normed["x"]
    hidden = _hidden(context, self._row(self.beta_in, layer, site)) if self.beta_hidden else context
    rows = (self._row(p, layer, site) for p in (self.beta_weight, self.beta_bias))
    beta = _strength(hidden, *rows)
    value = self._value(layer, site, context, tape)
    x = delta_update(state.x, out, beta, value, self.eps)
    cache = state.cache
    if cache is not None and state.segment_ids is not None:
      number = self._sublayer(layer, site)
      cache = cache.with_read(number, state.x, cache.counts(state.segment_ids))
    return DeltaState(x, state.segment_ids, cache)

  def final(self, state: DeltaState) -> Stream:
    """See `Combinator.final`. The output has a compressor too."""
    if self.compressor == "none":
      return state.x[0]
    past = None if state.cache is None else state.cache.final
    return pool(state.x, self._final_filters(), state.segment_ids, past)

  def decode_cache(self, batch_size: int, dtype: jax.typing.DTypeLike) -> DeltaCache | None:
    """See `Combinator.decode_cache`. It is None if no option mixes tokens."""
    if not self.embedding_expansion and self.compressor != "token":
      return None
    past = (batch_size, self.kernel_size - 1)
    embeddings = jnp.zeros((*past, self.d_model), dtype) if self.embedding_expansion else None
    reads = final = None
    if self.compressor == "token":
      final = jnp.zeros((self.value_width, *past, self.d_model), dtype)
      reads = jnp.zeros((self.num_sublayers, *final.shape), dtype)
    return DeltaCache(jnp.zeros(past, jnp.int32), embeddings, reads, final)

  def next_cache(self, state: DeltaState) -> DeltaCache | None:
    cache, segment_ids = state.cache, state.segment_ids
    return None if cache is None or segment_ids is None else cache.closed(segment_ids, state.x)

  def _sublayer(self, layer: Layer, site: str) -> Layer:
    return layer * len(self.sites) + self.sites.index(site)

  def _filters(self, layer: Layer, site: str) -> Array:
    """Returns the compressor of a sublayer as filters [taps, R, D]."""
    index = 0 if self.shared_compressor else self.sites.index(site)
    if self.compressor == "channel":
      return self._layer_row(self.mix, layer)[index][None]
    pool, taps = self._layer_row(self.pool, layer), self._layer_row(self.taps, layer)
    return pool[index][None, :, None] * taps[index]

  def _final_filters(self) -> Array:
    if self.compressor == "channel":
      return self.final_mix[...][None]
    return self.final_pool[...][None, :, None] * self.final_taps[...]

  def _value(self, layer: Layer, site: str, context: Array, x_in: Array) -> Array:
    """Returns v [R, ..., 1]."""
    linear = self.value == "linear"
    v = _values(context if linear else x_in, self._row(self.value_weight, layer, site))
    if not linear:
      bias = self._row(self.value_bias, layer, site)
      v = _SIGMOID_SCALE * jax.nn.sigmoid(v + aligned(bias, v))
    return jnp.moveaxis(v, -1, 0)[..., None]


@recomputed
def _hidden(context: Array, weight: Array) -> Array:
  """Returns tanh(c W_in) [..., beta_hidden] in float32 or wider."""
  return jnp.tanh(project("...d,dh->...h", context, weight))


@recomputed
def _strength(context: Array, weight: Array, bias: Array) -> Array:
  """Returns β = 2 σ(w · context + b) [..., 1] in float32 or wider."""
  wide = context.astype(wide_dtype(context))
  logit = jnp.sum(aligned(weight, wide) * wide, axis=-1, keepdims=True)
  return 2.0 * jax.nn.sigmoid(logit + aligned(bias, logit))


@recomputed
def _values(x: Array, weight: Array) -> Array:
  """Returns x Wᵀ [..., R] in float32 or wider."""
  wide = x.astype(wide_dtype(x))
  return jnp.einsum("rd,...d->...r", weight, wide, precision=lax.Precision.HIGHEST)


@recomputed
def delta_update(
  x: Streams,
  out: Stream,
  beta: Float[Array, "*tokens 1"],
  value: Float[Array, "R *tokens 1"],
  eps: Number,
) -> Streams:
  """Returns X + β k (vᵀ − kᵀX) with k = o / sqrt(‖o‖² + eps²), computed in float32 or wider.

  This is the paper's form of k; o = 0 gives k = 0, which leaves X as it is.

  Args:
    x: X; the result has its dtype.
    out: o.
    beta: β.
    value: v.
    eps: > 0.
  """
  wide = wide_dtype(x)
  direction, stream = out.astype(wide), x.astype(wide)
  square = jnp.sum(direction * direction, axis=-1, keepdims=True)
  k = repeated(direction * lax.rsqrt(square + eps**2), len(stream))
  held = jnp.sum(k * stream, axis=-1, keepdims=True)
  return (stream + aligned(beta, stream) * (value - held) * k).astype(x.dtype)
