"""Attention Residuals: depth attention over all earlier outputs."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resjax.base import Array
from resjax.combinators.base import Layer, PreNorm, Stream, TokenContext, Views
from resjax.combinators.depth_reader import OutputReader, TwoPhaseReader
from resjax.combinators.source import DepthState
from resjax.kernels.depth_attention import Sources


class AttnRes(TwoPhaseReader, OutputReader):
  """h_i = Σ_j softmax_j(w_i · γ_i ⊙ RMS(v_j)) v_j over the embedding and all earlier outputs.

  Sources are v_0 = x and v_j, the output of sublayer j. Every sublayer i and the output have a
  query w_i [D] and a key gain γ_i [D] of their own. The first reader has one source, so that its
  parameters get no gradient. With H heads each has C = D / H consecutive channels: its logits take
  the dot product over these, RMS(v) stays that of all D, and its softmax mixes these channels of v.

  State: all N = L · sites + 1 sources: N D values per token. Parameters: 2 D N, whatever H is;
  queries zero and gains one at init, which makes every read a uniform mean and, under scale-free
  pre-norms, the network a `standard` one.

  Options change the read to s_j = c q_i · k_j / τ, a = softmax(s), h_i = Σ_j a_j u_j. What adds
  parameters starts so that it changes nothing, but normalised values and a window make a fresh
  network differ from `standard`. Kernels take every scale, view and number of heads, and keys with
  or without gain; all else runs in plain JAX. Losses stand in the paper's table, where the
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
    temperature: τ > 0, fixed; 1 is the paper's. √8 = 2.828 is the control of MHAR with one head:
      2.847 where 8 heads have 2.848 and one without τ 2.876 (350M, as quoted elsewhere). With scale
      `learned` c/τ is learned, from 1/τ on. Queries start at zero, so τ slows how they learn.
    weights: `softmax`; `sigmoid`, a_j = σ(s_j) by itself, loss 1.741, and half the stream at init;
      `static`, a softmax of learned numbers s_ij, N per read, loss 1.749.
    dynamic_query: q_i = w_i + W_i RMS(z), W_i: [D, D], 0 at init, z the newest source; else w_i.
      Loss 1.731, for D² parameters per read. The paper does not say which activation is projected:
      z is our choice.
    views: the reads of the attention, the first site of a layer: `x`; `qk_v`, one read for queries
      and keys and another for values (RD-AttnRes, of which an index page quotes 2.4 to 3.0 % less
      perplexity at 120M and 343M; a small independent try had 0.6 % more); or `qkv`, one each. Each
      has its query and gain, and its pre-norm.
    two_phase: whether a scan reads the sources of earlier layers once for both sites of a layer,
      and merges the output of the first into the read of the second; the function is the same up to
      rounding. `auto` does so from ten layers on, where a kernel can run. `always` needs one head,
      at most two sites and a read that kernels cover, and uses plain JAX where none can run.
      `never` reads all sources at every site.
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

  def init(self, x: Stream, tokens: TokenContext | None = None) -> DepthState:
    return DepthState(Sources(recent=(x,)))

  def _read(
    self, state: DepthState, layer: Layer, site: str, norms: Mapping[str, PreNorm]
  ) -> tuple[Views, Any]:
    views = {}
    for view in self.view_names(site):
      if state.opened is None:
        norm = norms.get(view)
        views[view], sources = self._attend(state.sources, layer, site, norm=norm, view=view)
        state = DepthState(sources)
      else:
        views[view], state = self._merged(state, layer, site, norms.get(view), view)
    return views, state

  def _after(self, state: DepthState, layer: Layer, site: str, out: Array, tape: Any) -> DepthState:
    return dataclasses.replace(tape, sources=tape.sources.append(out))
