"""Delta Attention Residuals: depth attention added to the residual stream that it reads from."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from resjax.base import Array, aligned
from resjax.combinators.base import OUTPUT, Layer, SourceWeights, Stream, TokenContext, Views
from resjax.combinators.checks import check_choice, check_flag
from resjax.combinators.depth_reader import DepthReader, TwoPhaseReader
from resjax.combinators.numerics import project, recomputed, scaled_add
from resjax.combinators.source import DepthState
from resjax.kernels.depth_attention import Sources

_GATES = ("none", "scalar", "vector", "alpha")
_CLOSED = -2.0  # σ(-2) = 0.12
_QUERY_STD = 0.02


class DeltaReader(DepthReader):
  """A reader whose reads are added to a stream, the output of `final`; see `DeltaAttnRes`."""

  def __init__(
    self, *, output_gate: str = "none", null_source: bool = False, views: str = "x",
    rngs: nnx.Rngs | None = None, **options: Any,
  ):  # fmt: skip
    super().__init__(**options)
    self._add_views(views)
    self.null_source = check_flag("null_source", null_source)
    check_choice("output_gate", output_gate, _GATES)
    self.output_gate, self.needs_pre_norms = output_gate, output_gate != "alpha"
    per_site, per_channel = self.query.shape[:2], self.query.shape
    if output_gate == "scalar":
      self.gate_bias = nnx.Param(jnp.full(per_site, _CLOSED))
    if output_gate == "vector":
      self.gate_bias = nnx.Param(jnp.full(per_channel, _CLOSED))
      self.gate_weight = nnx.Param(jnp.zeros((*per_channel, self.d_model)))
      self.decayed_parameters = ("gate_weight",)
    if output_gate == "alpha":
      if rngs is None:
        raise ValueError("output_gate='alpha' draws its queries and needs rngs=nnx.Rngs(seed)")
      # With α = 0 and queries at zero neither of them would ever get a gradient.
      draw = nnx.initializers.normal(_QUERY_STD)
      self.query = nnx.Param(draw(rngs.params(), per_channel))
      self.alpha = nnx.Param(jnp.zeros(per_site))
    if null_source:
      self.null = nnx.Param(jnp.zeros(per_channel))
    own = ("gate_bias", "gate_weight", "alpha", "null")
    self.per_layer += tuple(name for name in own if hasattr(self, name))

  def source_names(self) -> tuple[str, ...]:
    return super().source_names() + ("null",) * self.null_source

  def depth_weights(self, state: DepthState, layer: Layer, site: str) -> SourceWeights | None:
    if not self.null_source or site == OUTPUT:
      return super().depth_weights(state, layer, site)
    sources = self._with_null(state.sources, layer, site)
    rows = self._softmax(sources, layer, site)
    ordered = state.sources.in_source_order(rows[:-1], len(self.source_names()) - 1)
    return jnp.concatenate([ordered, rows[-1:]])

  def _with_null(self, sources: Sources, layer: Layer, site: str) -> Sources:
    null = self._row(self.null, layer, site).astype(sources.groups()[0].dtype)
    return sources.append(jnp.broadcast_to(null, sources.shape))

  def read(self, state: DepthState, layer: Layer, site: str) -> tuple[Views, Any]:
    """See `Combinator.read`. The tape holds the sources for the next reader."""
    stream, views = self.final(state), {}
    gate = self._gate(stream, layer, site)
    for view in self.view_names(site):
      routed, state = self._routed(state, layer, site, view)
      views[view] = scaled_add(gate, routed, stream)
    return views, state

  def _routed(
    self, state: DepthState, layer: Layer, site: str, view: str
  ) -> tuple[Array, DepthState]:
    """Returns the read of a view of a site [B, T, D], and the state for the next reader."""
    if state.opened is not None:
      return self._merged(state, layer, site, view=view)
    sources = state.sources
    if self.null_source:
      sources = self._with_null(sources, layer, site)
    routed, sources = self._attend(sources, layer, site, view=view)
    if self.null_source:
      sources, _ = sources.pop()
    return routed, DepthState(sources, state.running)

  def only_direct(self) -> str:
    """See `DepthReader`. A null source is not the same for all sites."""
    return "null_source=True" if self.null_source else super().only_direct()

  def _gate(self, stream: Array, layer: Layer, site: str) -> Array:
    """Returns g: a scalar, or one number per channel and token."""
    if self.output_gate == "none":
      return jnp.ones(())
    if self.output_gate == "alpha":
      return self._row(self.alpha, layer, site)
    bias = self._row(self.gate_bias, layer, site)
    if self.output_gate == "scalar":
      return jax.nn.sigmoid(bias)
    return gate_of(stream, self._row(self.gate_weight, layer, site), bias)


@recomputed
def gate_of(x: Stream, weight: Float[Array, "D G"], bias: Float[Array, " G"]) -> Stream:
  """Returns σ(x W + b), with G = D channels or one for all of them."""
  logits = project("...d,dg->...g", x, weight)
  return jax.nn.sigmoid(logits + aligned(bias, logits))


class DeltaAttnRes(TwoPhaseReader, DeltaReader):
  """h_i = x + g_i ⊙ Σ_j softmax_j(w_i · γ_i ⊙ RMS(v_j)) v_j,  x ← x + f(h_i).

  Sources v_0 = the embedding and v_j = the output of sublayer j, as in `attn_res`, but the read is
  added to the ordinary stream x. The output reads nothing. With gate g the read interpolates
  between the stream and the routed one, (1 − g) x + g (x + Σ ...):

  `none`    g = 1
  `scalar`  g = σ(b),          b: [L, sites], init -2
  `vector`  g = σ(x W + b),    W: [L, sites, D, D], init 0; b: [L, sites, D], init -2
  `alpha`   g = α,             α: [L, sites], init 0

  A null source is one learned vector [D] per site, init 0, that takes part in the softmax. Views of
  a site share gate and null source. In the authors' mode `delta_v` they share the gain of the
  pre-norm too, which here every view has for itself; the value projection can absorb its own.

  State: the N = L · sites + 1 sources and x: (N + 1) D values per token. Parameters: 2 D per
  sublayer, queries zero and gains one at init, and what gate and null source have. The sources sum
  to x, so that their uniform mean is x / n and h = x (1 + g / n): under scale-free pre-norms a
  fresh network is a `standard` one, but not an identity on h; with `alpha` it is, for any query.
  There queries start as N(0, 0.02²): behind α = 0 they get no gradient, and α gets none from a read
  parallel to x. Of query, gain and a scalar gate only the query learns in the first step.

  The authors' code has no embedding among the sources of the very first read. Without a null source
  it skips that read (h = x, here x (1 + g), the same after the pre-norm unless g is a vector). With
  one it reads the null source alone, h = x + g n; here embedding and null source share the softmax,
  as in all later reads. Both are the same function at init, where n = 0. Its global initialiser
  overwrites the zero queries with noise of std 0.02; here they are zero, as published. It decays
  all parameters, here only W does. Its fine-tuning command gives them a hundred times the rate of
  the model, 5e-3 and 5e-5: config.optim.combinator_lr_multiplier = 100. Its other modes are in
  `delta_ablation`.

  Args:
    output_gate: `none`, `scalar`, `vector` or `alpha`.
    null_source: whether the softmax has a null source.
    views: `x`, `qk_v` or `qkv`, as in `attn_res`.
    two_phase: whether a scan reads earlier sources once per layer, as in `attn_res`; without a null
      source.
    num_heads: H, a divisor of D; heads as in `attn_res`.
    eps: added to the mean square of a source in its norm; > 0.
    implementation: of the read, see `depth_attention`; `auto` takes the best that can run.

  Raises:
    ValueError: output_gate, num_heads or eps out of range.

  Source: Delta Attention Residuals, arXiv 2605.18855; gates and null source from its code,
    github.com/wdlctc/delta-attention-residuals-code; with heads, arXiv 2607.27230.
  """

  def init(self, x: Stream, tokens: TokenContext | None = None) -> DepthState:
    return DepthState(Sources(recent=(x,)), x)

  def _after(self, state: DepthState, layer: Layer, site: str, out: Array, tape: Any) -> DepthState:
    return DepthState(tape.sources.append(out), state.running + out, tape.opened)

  def final(self, state: DepthState) -> Stream:
    return state.running
