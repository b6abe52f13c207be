"""Attention along depth with projected queries, keys and values, at the start of every layer."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from resjax.base import Array, wide_dtype
from resjax.combinators.base import Layer, SourceWeights, Stream, TokenContext, Views
from resjax.combinators.checks import check_option
from resjax.combinators.depth_reader import check_num_heads
from resjax.combinators.numerics import rms_normalized
from resjax.combinators.source import DepthState, EnteredStream, check_layer
from resjax.kernels.depth_attention import Sources


class DepthAttention(EnteredStream):
  """x ← x + W_O Σ_j softmax_j(q · k_j / √C) v_j at the start of each layer, then x ← x + f(x).

  q = W_Q RMS(x), k_j = W_K RMS(y_j), v_j = W_V RMS(y_j) over the last `window` layer outputs y_j:
  y_0 is the embedding, y_ℓ the stream x after layer ℓ, so the newest one is x itself. H heads of
  width C = D / H, every layer with its own W_Q, W_K, W_V: [D, H, C] and W_O: [H, C, D]; RMS
  without gain. All mixing is within a token. In the first layer, and with window 1 in all, the
  softmax has one source, so W_Q and W_K get no gradient.

  It does not use the kernel `resjax.kernels.depth_attention`, whose sources have no projections: it
  is plain JAX and has the name of the idea.

  This is the depth-axis read of the residual-stream duality, which calls it the same operator as
  sliding-window attention along the sequence. There h^(ℓ-K)..h^(ℓ) are window = K + 1 outputs, and
  neither norms nor heads are given. It stands for Vertical Attention (Kojima et al., OpenReview
  A6uabXKiXc), small attention modules over earlier layers at the start of each: its formulas are
  not published where we could read them, so this is not a reproduction.

  State: the L + 1 outputs and x: (L + 2) D values per token. Parameters: 4 L D², W_Q, W_K and W_V
  normal with std 1/√D and W_O zero at init, hence equal to `standard`. Keys and values are never
  formed: W_K is applied to the query and W_V after the mix, which costs 4 H D per source instead of
  4 D².

  Args:
    window: number of the latest layer outputs that a layer reads, x included; at least 1.
    num_heads: H, a divisor of D.
    eps: added to the mean square of a layer output in its norm; > 0.
    rngs: source of the initial values.

  Raises:
    ValueError: window, num_heads or eps out of range.

  Source: residual-stream duality (Transformer²), arXiv 2603.16039.
  """

  family = "depth readers"
  per_layer = ("query", "key", "value", "output")
  decayed_parameters = per_layer

  def __init__(
    self, *, window: int = 8, num_heads: int = 4, eps: float = 1e-6, rngs: nnx.Rngs, **options: Any
  ):
    super().__init__(**options)
    self.window = check_option("window", window, window >= 1, "window >= 1")
    check_num_heads(num_heads, self.d_model)
    self.eps = check_option("eps", eps, eps > 0, "eps > 0")
    self.num_heads = num_heads
    width, head_width = self.d_model, self.d_model // num_heads
    shape = (self.num_layers, width, num_heads, head_width)
    init = nnx.initializers.normal(1 / math.sqrt(width))
    axes = ("embed_param", None, None)
    self.query = nnx.Param(init(rngs.params(), shape), axes=axes)
    self.key = nnx.Param(init(rngs.params(), shape), axes=axes)
    self.value = nnx.Param(init(rngs.params(), shape), axes=axes)
    output = jnp.zeros((self.num_layers, num_heads, head_width, width))
    self.output = nnx.Param(output, axes=(None, None, "embed_param"))

  def init(self, x: Stream, tokens: TokenContext | None = None) -> DepthState:
    return DepthState(Sources(recent=(x,)), x)

  def _enter(self, state: DepthState, layer: Layer) -> Array:
    x, weights = state.running, [self._layer_row(getattr(self, p), layer) for p in self.per_layer]
    # The reverse pass keeps neither float32 copies of the sources nor the slice of the bank.
    recomputed = jax.checkpoint(_attend, prevent_cse=False, static_argnums=(0, 1))
    return x + recomputed(self.window, self.eps, state.sources, x, *weights)

  def write(
    self, state: DepthState, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> DepthState:  # fmt: skip
    """See `Combinator.write`. The last site of a layer appends a source."""
    check_layer(layer, state.sources)
    x = tape + out
    ends_layer = site == self.sites[-1]
    return DepthState(state.sources.append(x) if ends_layer else state.sources, x)

  def final(self, state: DepthState) -> Stream:
    return state.running

  def source_names(self) -> tuple[str, ...]:
    return ("embedding", *(f"layer {layer}" for layer in range(self.num_layers)))

  def depth_weights(self, state: DepthState, layer: Layer, site: str) -> SourceWeights | None:
    """See `Combinator.depth_weights`. Only the first site of a layer reads sources."""
    if site != self.sites[0]:
      return None
    query, key = (self._layer_row(p, layer) for p in (self.query, self.key))
    sources, count = state.sources.latest(self.window), self.num_layers + 1
    rows = jnp.mean(_softmax(self.eps, sources, state.running, query, key)[0], axis=-1)
    first = layer + 1 - sources.num_valid - len(sources.recent)
    return jnp.roll(sources.in_source_order(rows, count), first, axis=0)


def _attend(window: int, eps: float, sources: Sources, x: Array, *params: Array) -> Array:
  """Returns W_O Σ_j softmax_j(q · k_j / √C) v_j [..., D] over the latest sources [..., D]."""
  query, key, value, output = (w.astype(x.dtype) for w in params)
  weights, slots, inverse_rms = _softmax(eps, sources.latest(window), x, query, key)
  mixed = _exact("n...h,n...d->...hd", weights * inverse_rms, slots).astype(x.dtype)
  v = jnp.einsum("...hd,dhc->...hc", mixed, value)
  return jnp.einsum("...hc,hcd->...d", v, output)


def _softmax(
  eps: float, sources: Sources, x: Array, query: Array, key: Array
) -> tuple[Array, Array, Array]:
  """Returns weights [slots, ..., H], the slots [slots, ..., D] that they weigh, and 1 / RMS."""
  wide = wide_dtype(x)
  query, key = (w.astype(x.dtype) for w in (query, key))
  slots = jnp.concatenate(sources.groups()).astype(wide)
  inverse_rms = jax.lax.rsqrt(jnp.mean(slots * slots, axis=-1, keepdims=True) + eps)
  q = jnp.einsum("...d,dhc->...hc", rms_normalized(x, eps).astype(x.dtype), query)
  q = jnp.einsum("...hc,dhc->...hd", q, key, preferred_element_type=wide)
  logits = _exact("...hd,n...d->n...h", q, slots) * inverse_rms / math.sqrt(query.shape[-1])
  valid = sources.valid().reshape(-1, *(1,) * (logits.ndim - 1))
  return jax.nn.softmax(jnp.where(valid, logits, -jnp.inf), axis=0), slots, inverse_rms


def _exact(equation: str, *operands: Array) -> Array:
  """Returns an einsum that does not round softmax weights to bfloat16, as TPUs do by default."""
  return jnp.einsum(equation, *operands, precision="highest")
