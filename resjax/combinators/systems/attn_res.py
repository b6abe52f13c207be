"""Attention Residuals: depth attention over all earlier outputs, or over sums of blocks of them."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from resjax.base import Array
from resjax.combinators.base import OUTPUT, Layer, TokenContext, Views, check_flag, check_option
from resjax.combinators.depth_reader import DepthBlocks, DepthReader, Reader
from resjax.combinators.numerics import rms_normalized
from resjax.combinators.pre_norm import Norms, PreNorm, are_pre_norms
from resjax.combinators.source import DepthState
from resjax.kernels.depth_attention import Sources, depth_attention_merge


class _OutputReader(DepthReader):
  """A reader with options for its `scores` that has a reader for the output too."""

  needs_pre_norms = True

  def __init__(
    self, *,
    value_norm: bool = False, key_norm: str = "gain", key_rank: int = 0, scale: str = "one",
    weights: str = "softmax", dynamic_query: bool = False, views: str = "x", **options: Any,
  ):  # fmt: skip
    self.scores = dataclasses.replace(
      self.scores, value_norm=value_norm, key_norm=key_norm, key_rank=key_rank, scale=scale,
      weights=weights, dynamic_query=dynamic_query,
    )  # fmt: skip
    super().__init__(**options)
    self._add_views(views)
    self._add_readers("final_")
    self.equals_standard_at_init = self.scores.is_neutral

  @abc.abstractmethod
  def _read(
    self, state: DepthState, layer: Layer, site: str, norms: Mapping[str, PreNorm]
  ) -> tuple[Views, Any]:
    """Returns the views, each through its norm if it has one, and the tape of `read`."""

  def read(self, state: DepthState, layer: Layer, site: str) -> tuple[Views, Any]:
    """See `Combinator.read`. The tape holds the sources for the next reader."""
    return self._read(state, layer, site, {})

  def read_normed(
    self, state: DepthState, layer: Layer, site: str, norms: Norms
  ) -> tuple[Views, Any]:
    """See `Combinator.read_normed`. A `PreNorm` is part of the read."""
    if not are_pre_norms(norms):
      return super().read_normed(state, layer, site, norms)
    views, tape = self._read(state, layer, site, norms)
    return {name: views[name] for name in norms}, tape

  def final(self, state: DepthState) -> Array:
    return self._attend_with(self._reader(self.num_layers, OUTPUT), state.sources)[0]

  def _reader(self, layer: Layer, site: str, view: str = "x") -> Reader:
    if site == OUTPUT:
      return {name: p[...] for name, p in self._readers("final_").items()}
    return super()._reader(layer, site, view)

  def depth_weights(self, state: DepthState, layer: Layer, site: str) -> Array | None:
    """See `Combinator.depth_weights`. The output reads too."""
    if site != OUTPUT:
      return super().depth_weights(state, layer, site)
    rows = self._softmax(state.sources, layer, site)
    return state.sources.in_source_order(rows, len(self.source_names()))


class AttnRes(_OutputReader):
  """h_i = Σ_j softmax_j(w_i · γ_i ⊙ RMS(v_j)) v_j over the embedding and all earlier outputs.

  Sources are v_0 = x and v_j, the output of sublayer j. Every sublayer i and the output have a
  query w_i [D] and a key gain γ_i [D] of their own. The first reader has one source, so that its
  parameters get no gradient. With H heads each has C = D / H consecutive channels: its logits take
  the dot product over these, RMS(v) stays that of all D, and its softmax mixes these channels of v.

  State: all N = L · sites + 1 sources: N D values per token. Parameters: 2 D N, whatever H is;
  queries zero and gains one at init, which makes every read a uniform mean and, under scale-free
  pre-norms, the network a `standard` one.

  Options change the read to s_j = c q_i · k_j, a = softmax(s), h_i = Σ_j a_j u_j. What adds
  parameters starts so that it changes nothing, but normalised values and a window make a fresh
  network differ from `standard`. Kernels take every scale, view and number of heads, and keys with
  or without gain; all else runs in plain JAX. Losses are those of the paper's table, where the
  defaults have 1.737 and pre-norm 1.766.

  Args:
    window: W, sources are the embedding and the last W outputs; 0: all. With 8 the loss is 1.764:
      far sources are what helps. All sources are kept; this saves nothing.
    value_norm: whether u_j = RMS(v_j), but for the first reader, whose only source stays v_0; else
      u_j = v_j. True in Inkling 2, with plain keys and scale `rsqrt`; no comparison is public.
    key_norm: k_j = γ_i ⊙ RMS(v_j) for `gain`; RMS(v_j) for `plain`; v_j for `none`, loss 1.743.
    key_rank: r, keys are made of the last r channels of v_j, with their RMS, and w_i is [r]; 0: D.
      It saves arithmetic, not memory; no losses were found. (The sliced form of the paper; in the
      projected one branches emit keys as further outputs, which is not here.)
    scale: c = 1 for `one`; 1/√C for `rsqrt`, with C channels of a head's key; `learned`: exp(t_i),
      t_i = 0 at init, the control arm for gains that a flatter softmax would give, too.
    weights: `softmax`; `sigmoid`, a_j = σ(s_j) by itself, loss 1.741, and half the stream at init;
      `static`, a softmax of learned numbers s_ij, N per read, loss 1.749.
    dynamic_query: q_i = w_i + W_i RMS(z), W_i: [D, D], 0 at init, z the newest source; else w_i.
      Loss 1.731, for D² parameters per read. The paper does not say which activation is projected:
      z is our choice.
    views: the reads of the attention, the first site of a layer: `x`; `qk_v`, one read for queries
      and keys and another for values (RD-AttnRes, of which an index page quotes 2.4 to 3.0 % less
      perplexity at 120M and 343M; a small independent try had 0.6 % more); or `qkv`, one each. Each
      has its query and gain, and its pre-norm.
    num_heads: H, a divisor of D; 1 is Full Attention Residuals, more is Multi-Head (MHAR).
    eps: added to the mean square of a source in its norm; > 0.
    implementation: of the read, see `depth_attention`; `auto` takes the best that can run.

  Raises:
    ValueError: an option is out of range, or does not go with another one.

  Source: Attention Residuals (Full), arXiv 2603.15031; with heads, arXiv 2607.27230; low-rank keys,
    arXiv 2607.09694; qk_v, arXiv 2608.01075; qkv and normalised values, Inkling 2.
  """

  def __init__(self, *, window: int = 0, **options: Any):
    self.scores = dataclasses.replace(self.scores, window=window)
    super().__init__(**options)

  def init(self, x: Array, tokens: TokenContext | None = None) -> DepthState:
    """See `Combinator.init`."""
    return DepthState(Sources(recent=(x,)))

  def _read(
    self, state: DepthState, layer: Layer, site: str, norms: Mapping[str, PreNorm]
  ) -> tuple[Views, Any]:
    views, sources = {}, state.sources
    for view in self.view_names(site):
      views[view], sources = self._attend(sources, layer, site, norm=norms.get(view), view=view)
    return views, DepthState(sources)

  def _after(self, state: DepthState, layer: Layer, site: str, out: Array, tape: Any) -> DepthState:
    return DepthState(tape.sources.append(out))


class BlockAttnRes(DepthBlocks, _OutputReader):
  """h_i = depth attention over [x, sums of completed depth blocks, running sum of this block].

  A depth block is `layers_per_block` layers; its source is the sum of its sublayers' outputs. The
  last block may be shorter. The first sublayer of a block does not see the (empty) running sum.
  The output read sees x and all block sums. Heads and the options of reads are those of `attn_res`;
  for dynamic_query z is the running sum, which is zero, hence no part of q, where a block begins.

  Inkling 2 has layers_per_block=6, value_norm, key_norm `plain`, scale `rsqrt`, views `qkv`. Only
  its full-attention layers, one in six, have three queries: the others are layers whose three
  queries, and pre-norms of x, k and v, are equal. (A scan needs layers of one form.)

  Differences within blocks as further sources (WAV or HAARES, arXiv 2606.06564, multi-resolution
  routing) are left out: the bias of their logits and the place of the running block are not
  published.

  With `rms_block` a completed block is Σ_i RMS(o_i), without gain, over its outputs o_i; x and
  the running sum stay raw. A last block that is shorter counts as completed. Its uniform mean is
  not parallel to the stream, so a fresh network is not `standard`.

  State: N + 1 = ⌈L / layers_per_block⌉ + 1 sources and the running sum: (N + 2) D values per token,
  with rms_block (N + 3) D. Parameters: 2 D (L · sites + 1), init as in `attn_res`, hence equal to
  `standard` at init without rms_block.

  Args:
    layers_per_block: layers summed into one source, 1..L. (The paper's figure counts sublayers.)
    rms_block: whether outputs are normalised before they are summed into a completed block.
    two_phase: whether a scan reads the complete sources once for all sites of a block, and then
      merges the running sum site by site; the function is the same up to rounding. `auto` does so
      with several blocks where a kernel can run. `always` needs one head and a read that kernels
      cover, and uses plain JAX where none can run. `never` reads all sources at every site.
    value_norm: whether values are normalised; this and what follows is as in `attn_res`.
    key_norm: `gain`, `plain` or `none`.
    key_rank: 0..D.
    scale: `one`, `rsqrt` or `learned`.
    weights: `softmax` or `sigmoid`.
    dynamic_query: whether queries depend on the token.
    views: `x`, `qk_v` or `qkv`.
    num_heads: H, a divisor of D.
    eps: added to the mean square of a source, and with rms_block of an output; > 0.
    implementation: of the read, see `depth_attention`; `auto` takes the best that can run.

  Raises:
    ValueError: an option is out of range, or does not go with another one.

  Source: Attention Residuals (Block), arXiv 2603.15031; options as in `attn_res`; rms_block:
    github.com/kimmichtank/rms-block-attnres, whose blocks are 4 sublayers.
  """

  def __init__(self, *, rms_block: bool = False, **options: Any):
    super().__init__(**options)
    check_flag("rms_block", rms_block)
    weights = self.scores.weights
    check_option("weights", weights, weights != "static", "softmax, sigmoid")
    self.rms_block = rms_block
    self.equals_standard_at_init &= not rms_block

  def init(self, x: Array, tokens: TokenContext | None = None) -> DepthState:
    """See `Combinator.init`. Sites read the first running sum; the last one becomes the source."""
    sums = (jnp.zeros_like(x),) * (2 if self.rms_block else 1)
    return DepthState(Sources(recent=(x,)), sums)

  def close_block(self, state: DepthState) -> DepthState:
    """See `Combinator.close_block`. A sum of the running block becomes a source."""
    sources = state.sources.append(state.running[-1])
    return DepthState(sources, jax.tree.map(jnp.zeros_like, state.running))

  def _has_started(self, layer: Layer, site: str) -> bool | Array:
    """Returns whether the running block has written before a site."""
    return (layer % self.layers_per_block != 0) | (site != self.sites[0])

  def depth_weights(self, state: DepthState, layer: Layer, site: str) -> Array | None:
    """See `Combinator.depth_weights`. The running sum has the place of its block."""
    if site == OUTPUT:
      return super().depth_weights(state, layer, site)
    sources = state.sources.append(state.running[0])
    rows = self._softmax(sources, layer, site, self._has_started(layer, site))
    return sources.in_source_order(rows, len(self.source_names()))

  def _read(
    self, state: DepthState, layer: Layer, site: str, norms: Mapping[str, PreNorm]
  ) -> tuple[Views, Any]:
    started = self._has_started(layer, site)
    views, sources, opened = {}, state.sources, state.opened
    running, *others = state.running
    for view in self.view_names(site):
      norm = norms.get(view)
      if opened is None:
        views[view], sources = self._attend(
          sources.append(running), layer, site, started, norm, view
        )
        sources, running = sources.pop()
      else:
        views[view], running, opened = depth_attention_merge(
          opened,
          self._slot(layer, site, view),
          running,
          **self.scores.folded(self._reader(layer, site, view)),
          last_valid=started,
          **self._kernel_options(norm),
        )
    return views, DepthState(sources, (running, *others), opened)

  def _after(self, state: DepthState, layer: Layer, site: str, out: Array, tape: Any) -> DepthState:
    """See `SourceMixer._after`. The last integer layer of a block closes it."""
    outs = (out, rms_normalized(out, self.eps).astype(out.dtype)) if self.rms_block else (out,)
    running = jax.tree.map(jnp.add, tape.running, outs)
    state = DepthState(tape.sources, running, tape.opened)
    return self._close_if_ended(state, layer, site)
