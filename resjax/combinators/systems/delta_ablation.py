"""Ablations of Delta Attention Residuals: other sources, and reads that replace the stream."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool

from resjax.base import Array, aligned, wide_dtype
from resjax.combinators.base import (
  OUTPUT,
  Layer,
  SourceWeights,
  Strategy,
  Stream,
  TokenContext,
  Views,
)
from resjax.combinators.checks import check_choice, check_option
from resjax.combinators.numerics import recomputed, scaled_add
from resjax.combinators.source import DepthState
from resjax.combinators.systems.delta_attn_res import DeltaReader, gate_of
from resjax.kernels.depth_attention import Sources, depth_sum

Gate = tuple[Array, Array, Array] | None  # stream, W and b


class _Outputs:
  """What is kept for later reads: every output. The embedding is there, and not read."""

  strategy: Strategy = "history"

  def init(self, x: Stream) -> Sources:
    return Sources(recent=(x,))

  def counts(self, sources: Sources, layer: Layer) -> Bool[Array, " slots"]:
    """Returns which slots a read attends to."""
    return sources.valid().at[0].set(False)

  def kept(
    self, sources: Sources, out: Stream, stream: Stream, ends_first: Bool[Array, ""] | bool
  ) -> Sources:
    """Returns the sources after a site; `ends_first`: whether it was the last of layer 0."""
    return sources.append(out)


class _Streams(_Outputs):
  """The stream after every sublayer. The embedding is there, and not read."""

  def kept(
    self, sources: Sources, out: Stream, stream: Stream, ends_first: Bool[Array, ""] | bool
  ) -> Sources:
    """Returns the sources after a site, with the stream appended."""
    return sources.append(stream)


class _FirstOutput(_Outputs):
  """One source: the output of the last site of the first layer."""

  strategy: Strategy = "carry"

  def init(self, x: Stream) -> Sources:
    """Returns the sources before the first site: a zero [..., D] in place of the output."""
    return Sources(recent=(jnp.zeros_like(x),))

  def counts(self, sources: Sources, layer: Layer) -> Bool[Array, " slots"]:
    """Returns which slots a read attends to: none before the first layer has ended."""
    return jnp.asarray([layer > 0])

  def kept(
    self, sources: Sources, out: Stream, stream: Stream, ends_first: Bool[Array, ""] | bool
  ) -> Sources:
    """Returns the sources after a site: the output, if the site ends the first layer."""
    return Sources(recent=(jnp.where(ends_first, out, sources.recent[0]),))


class _Mode(NamedTuple):
  sources: _Outputs
  replaces: bool = False  # whether the stream is a source too, and the read takes its place
  gated: bool = False  # whether sources are gated by the stream before they are scored


_MODES = {
  "delta_additive": _Mode(_Outputs()),
  "delta_replace": _Mode(_Outputs(), replaces=True),
  "full_additive": _Mode(_Streams()),
  "full_replace": _Mode(_Streams(), replaces=True),
  "pre_gated": _Mode(_Outputs(), gated=True),
  "first_layer": _Mode(_FirstOutput(), replaces=True),
}


class DeltaAblation(DeltaReader):
  """h_i = x + g_i ⊙ (read_i), or with a read that replaces x: h_i = (1 − g_i) x + g_i read_i.

  These are modes of the code of Delta Attention Residuals beside `delta_attn_res`, to tell what its
  gain comes from. The read is depth attention as there, with these sources, where o_j are the
  outputs of earlier sublayers and x_j = x_{j-1} + o_j the streams after them; x ← x + f(h_i).

  `delta_additive`  o_1 .. o_{i-1}; is added to x
  `delta_replace`   o_1 .. o_{i-1} and x; replaces x
  `full_additive`   x_1 .. x_{i-1}, the last of which is x; is added to x
  `full_replace`    x_1 .. x_{i-1} and x, which thus counts twice; replaces x
  `pre_gated`       σ(x W_i + b_i) ⊙ o_j, keys and values; is added to x. W: [L, sites, D, D] and
                    b: [L, sites, D], both 0 at init, so that a source starts at half its size
  `first_layer`     the output of the last site of the first layer, and x; replaces x. The first
                    layer reads x

  As released, none has the embedding among its sources, unlike `delta_attn_res`. Therefore their
  uniform means are not parallel to x, and a fresh network is a `standard` one with output_gate
  `alpha` only. A read without any source is 0. Output gates, null source, views, queries and gains
  are as in `delta_attn_res`. In the released code `delta_additive` and `full_replace` exist with
  views `qk_v` alone, as `delta_v` and `full_v`, and the others without views; the last two modes
  have no output gate, and only additive ones a null source. No result of these modes is published:
  take them to explain a gain of `delta_attn_res`, not to get one.

  State: all outputs or streams, the embedding, and x: (L · sites + 2) D values per token; with
  `first_layer` 2 D. Parameters: 2 D per sublayer, and what gates and null source have. Reads are in
  plain JAX, without the kernels of `depth_attention`.

  All modes but `first_layer` agree with the authors' code. There it names the first MLP output, but
  takes item 2 of a list that began with the embedding in an earlier version: as released that is
  the output of the second layer's attention, from the third layer on. Here the name says which one.

  Args:
    mode: one of those above.
    output_gate: `none`, `scalar`, `vector` or `alpha`.
    null_source: whether the softmax has a null source.
    views: `x`, `qk_v` or `qkv`, as in `attn_res`.
    num_heads: H, a divisor of D; heads as in `attn_res`.
    eps: added to the mean square of a source in its norm; > 0.
    implementation: `auto` or `reference`.

  Raises:
    ValueError: mode, output_gate, num_heads, eps or implementation out of range.

  Source: github.com/wdlctc/delta-attention-residuals-code, fc11c3e; see `delta_attn_res`.
  """

  def __init__(self, *, mode: str = "delta_additive", **options: Any):
    super().__init__(**options)
    self.mode = check_choice("mode", mode, _MODES)
    plain = self.implementation in ("auto", "reference")
    check_option("implementation", self.implementation, plain, "auto, reference")
    self.strategy = self._mode.sources.strategy
    self.equals_standard_at_init = self.output_gate == "alpha"
    if self._mode.gated:
      per_channel = self.query.shape
      self.source_gate = nnx.Param(jnp.zeros((*per_channel, self.d_model)))
      self.source_bias = nnx.Param(jnp.zeros(per_channel))
      self.per_layer += ("source_gate", "source_bias")
      self.decayed_parameters += ("source_gate",)

  @property
  def _mode(self) -> _Mode:
    return _MODES[self.mode]

  def source_names(self) -> tuple[str, ...]:
    """See `Combinator.source_names`. A stream that a read replaces comes last."""
    return self._kept_names() + ("null",) * self.null_source + ("stream",) * self._mode.replaces

  def _kept_names(self) -> tuple[str, ...]:
    return (f"0 {self.sites[-1]}",) if self.strategy == "carry" else ("embedding", *self._written())

  def init(self, x: Stream, tokens: TokenContext | None = None) -> DepthState:
    return DepthState(self._mode.sources.init(x), x)

  def depth_weights(self, state: DepthState, layer: Layer, site: str) -> SourceWeights | None:
    if site == OUTPUT:
      return None
    sources, counts, query, *gate = self._operands(state, layer, site)
    rows = jnp.mean(self._softmax_over(_gated(sources, *gate), counts, query), axis=-1)
    names = self._kept_names()
    slots = len(rows) - len(self.source_names()) + len(names)
    return jnp.concatenate([state.sources.in_source_order(rows[:slots], len(names)), rows[slots:]])

  def read(self, state: DepthState, layer: Layer, site: str) -> tuple[Views, Any]:
    gate, views = self._gate(state.running, layer, site), {}
    mix = _interpolated if self._mode.replaces else scaled_add
    for view in self.view_names(site):
      # What the reverse pass needs of the sources it computes again, and keeps them alone.
      read = recomputed(self._mixed)(*self._operands(state, layer, site, view))
      views[view] = mix(gate, read, state.running)
    return views, None

  def _operands(
    self, state: DepthState, layer: Layer, site: str, view: str = "x"
  ) -> tuple[Any, ...]:
    """Returns sources, which of them are attended to, the query, and gates of sources or None."""
    sources, counts = state.sources, self._mode.sources.counts(state.sources, layer)
    if self.null_source:
      sources = self._with_null(sources, layer, site)
    if self._mode.replaces:
      sources = sources.append(state.running)
    counts = jnp.concatenate([counts, sources.valid()[len(counts) :]])
    reader = self._reader(layer, site, view)
    query = reader["query"] * reader["key_scale"]
    if not self._mode.gated:
      return sources, counts, query, None
    gate = (self._row(p, layer, site) for p in (self.source_gate, self.source_bias))
    return sources, counts, query, (state.running, *gate)

  def _mixed(self, sources: Sources, counts: Array, query: Array, gate: Gate) -> Array:
    """Returns the read [..., D]."""
    gated = _gated(sources, gate)
    weights = self._softmax_over(gated, counts, query)[..., None]
    mixed = depth_sum(_in_heads(gated, self.num_heads), weights).reshape(sources.shape)
    return mixed.astype(sources.groups()[0].dtype)

  def _softmax_over(self, sources: Sources, counts: Array, query: Array) -> Array:
    """Returns the weights of the slots [slots, ..., H], all zero if none counts."""
    logits = jnp.concatenate([self.scores.logits(query, group) for group in sources.groups()])
    counts = counts.reshape(-1, *(1,) * (logits.ndim - 1))
    logits = jnp.where(counts | ~jnp.any(counts), logits, -jnp.inf)
    return jnp.where(counts, jax.nn.softmax(logits, axis=0), 0)

  def _after(self, state: DepthState, layer: Layer, site: str, out: Array, tape: Any) -> DepthState:
    stream = state.running + out
    ends_first = (layer == 0) & (site == self.sites[-1])
    return DepthState(self._mode.sources.kept(state.sources, out, stream, ends_first), stream)

  def final(self, state: DepthState) -> Stream:
    return state.running


@recomputed
def _interpolated(gate: Array, read: Array, stream: Array) -> Array:
  """Returns (1 - g) x + g read [..., D]."""
  wide = wide_dtype(stream)
  stream_wide = stream.astype(wide)
  gate = aligned(gate, stream_wide)
  return (stream_wide + gate * (read.astype(wide) - stream_wide)).astype(stream.dtype)


def _gated(sources: Sources, gate: Gate) -> Sources:
  """Returns σ(x W + b) ⊙ the sources, or the sources if there is no gate."""
  if gate is None:
    return sources
  factor = gate_of(*gate)
  return _each(lambda source: aligned(factor, source) * source.astype(factor.dtype), sources)


def _in_heads(sources: Sources, num_heads: int) -> Sources:
  return _each(lambda source: source.reshape(*source.shape[:-1], num_heads, -1), sources)


def _each(change: Callable[[Array], Array], sources: Sources) -> Sources:
  bank = None if sources.bank is None else change(sources.bank)
  return dataclasses.replace(sources, recent=tuple(map(change, sources.recent)), bank=bank)
