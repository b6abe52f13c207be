"""Multi-Gate Residuals: streams that move towards every output, each by a gate of its own."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from resjax.base import Array, wide_dtype
from resjax.combinators.base import Combinator, Layer, Stream, Streams, TokenContext, Views
from resjax.combinators.checks import check_choice, check_option
from resjax.combinators.numerics import project, recomputed
from resjax.kernels import repeated
from resjax.kernels.depth_attention import Sources, depth_attention

_GATES = ("competitive", "independent")
_BASE_SHARE = 1 / (1 + math.exp(3))  # σ(-3), the gate of a network with _BASE_DEPTH sublayers
_BASE_DEPTH = 21


class MultiGate(Combinator):
  """h = Σ_s softmax_s(w · RMS(H_s) / √D) H_s;  H_s ← (1 − β_s) H_s + β_s f(h), with R streams H_s.

  The streams open one by one: H_1 is the embedding, and the outputs of the first R − 1 sublayers
  become H_2 .. H_R, unmixed; copies of the embedding would stay equal for ever. After that every
  sublayer moves all streams, by gates β in (0, 1) for every token:

  `independent`  β_s = σ(z_s + b_s),                  z_s = u · RMS(H_s) / √D,  b: [L, sites, R]
  `competitive`  β_s = exp(z_s) / (exp(b) + Σ_r exp(z_r)),                      b: [L, sites, 1]

  RMS is without gain. The output is one more read, with its own w. All steps are convex: the norm
  of a stream or of a read is at most the largest one of the embedding and the outputs of its token.

  State: R D values per token. Parameters: w and u, 2 D per sublayer, D for the output, and b. At
  init w and u are zero, thus reads are means of the open streams, and all gates σ(−3) √(21 / M),
  where M = L · sites − R + 1 (1 if that is less) is the number of sublayers that move streams:
  b = ln(√(M / 21) (e³ + 1) − R) if competitive, −ln(√(M / 21) (e³ + 1) − 1) if independent. This
  is far from `standard`.

  What is known: the body of the paper could not be read. The equations are from two notes on
  it, one of them a port that has the independent form alone and starts its b from −ln(... − R).
  They do not say whether f is a sublayer, as here, or a layer with residuals inside, whether the
  forget score b depends on the token, or which parameters are decayed; here none is. According to
  one of them this is better than pre-norm, `mhc_lite`, `block_attn_res` and `attn_res` at 0.12B to
  0.77B parameters and 10B tokens, best with R = 8 and competitive gates; there are no numbers, and
  nobody else has reported any. Take it where the state must stay bounded over a deep network.

  Args:
    num_streams: R, at least 1; below √(M / 21) (e³ + 1) if competitive.
    gate: `competitive` or `independent`.
    eps: added to the mean square of a stream in its norm; > 0.

  Raises:
    ValueError: num_streams, gate or eps out of range.

  Source: Multi-Gate Residuals, arXiv 2605.23259, second-hand: github.com/swfsql/burn-mamba.
  """

  equals_standard_at_init = False
  family = "streams"
  per_layer = ("query", "gate_query", "gate_bias")

  def __init__(
    self, *, num_streams: int = 4, gate: str = "competitive", eps: float = 1e-6, **options: Any
  ):
    super().__init__(**options)
    self.gate = check_choice("gate", gate, _GATES)
    self.eps = check_option("eps", eps, eps > 0, "eps > 0")
    check_option("num_streams", num_streams, num_streams >= 1, "num_streams >= 1")
    self.num_streams = num_streams
    per_site = (self.num_layers, len(self.sites))
    self.query = nnx.Param(jnp.zeros((*per_site, self.d_model)))
    self.gate_query = nnx.Param(jnp.zeros((*per_site, self.d_model)))
    self.final_query = nnx.Param(jnp.zeros(self.d_model))
    count = 1 if gate == "competitive" else num_streams
    self.gate_bias = nnx.Param(jnp.full((*per_site, count), self._initial_bias()))

  def _initial_bias(self) -> float:
    moving = max(self.num_sublayers - self.num_streams + 1, 1)
    inverse = math.sqrt(moving / _BASE_DEPTH) / _BASE_SHARE  # of the gate
    if self.gate == "independent":
      return -math.log(inverse - 1)
    allowed = f"below {inverse:.3g} for competitive gates of {self.num_sublayers} sublayers"
    check_option("num_streams", self.num_streams, self.num_streams < inverse, allowed)
    return math.log(inverse - self.num_streams)

  def init(self, x: Stream, tokens: TokenContext | None = None) -> Streams:
    """See `Combinator.init`. Streams that are not open hold zeros."""
    return jnp.stack([x, *[jnp.zeros_like(x)] * (self.num_streams - 1)])

  def read(self, state: Streams, layer: Layer, site: str) -> tuple[Views, Any]:
    query = self._row(self.query, layer, site)
    return {"x": self._pooled(state, query, self._number(layer, site) + 1)}, None

  def _number(self, layer: Layer, site: str) -> Layer:
    return layer * len(self.sites) + self.sites.index(site)

  def _pooled(self, state: Array, query: Array, num_open: Layer) -> Array:
    """Returns the read [..., D] of the streams that are open, R of them at most."""
    sources = Sources(bank=state, num_valid=num_open)
    query = query / math.sqrt(self.d_model)
    pooled: Any = depth_attention(sources, query, eps=self.eps, layout=self.layout)
    return pooled

  def write(
    self, state: Streams, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> Streams:  # fmt: skip
    query, bias = (self._row(p, layer, site) for p in (self.gate_query, self.gate_bias))
    gates = self._gates(_scores(self.eps, state, query / math.sqrt(self.d_model)), bias)
    slot = self._number(layer, site) + 1
    # An output that opens a stream fills it, and leaves the others as they are.
    opens = _along(jnp.arange(self.num_streams) == slot, gates).astype(gates.dtype)
    return _moved(state, out, jnp.where(slot < self.num_streams, opens, gates))

  def _gates(self, scores: Array, bias: Array) -> Array:
    """Returns β [R, ...] from z [R, ...] and b."""
    if self.gate == "independent":
      return jax.nn.sigmoid(scores + _along(bias, scores))
    forget = _along(bias, scores) + jnp.zeros_like(scores[:1])
    return jax.nn.softmax(jnp.concatenate([forget, scores]), axis=0)[1:]

  def final(self, state: Streams) -> Stream:
    return self._pooled(state, self.final_query[...], self.num_sublayers + 1)

  def final_after(self, state: Streams, layer: Layer, site: str) -> Stream:
    """See `Combinator.final_after`. It reads the streams that are open by then."""
    return self._pooled(state, self.final_query[...], self._number(layer, site) + 2)


@partial(jax.checkpoint, prevent_cse=False, static_argnums=0)
def _scores(eps: float, streams: Array, query: Array) -> Array:
  """Returns w · RMS(H_s) [R, ...]."""
  wide = streams.astype(wide_dtype(streams))
  mean_square = jnp.mean(wide * wide, axis=-1)
  return project("r...d,d->r...", streams, query) * jax.lax.rsqrt(mean_square + eps)


@recomputed
def _moved(streams: Array, out: Array, gates: Array) -> Array:
  """Returns (1 - β_s) H_s + β_s f [R, ..., D]."""
  gates, wide = gates[..., None], streams.astype(wide_dtype(streams))
  out = repeated(out.astype(wide.dtype), len(wide))
  return ((1 - gates) * wide + gates * out).astype(streams.dtype)


def _along(values: Array, like: Array) -> Array:
  """Returns values [n] with axes of size 1 behind, so that they broadcast along `like` [R, ...]."""
  return values.reshape(-1, *(1,) * (like.ndim - 1))
