"""Attention Residuals: depth attention over all earlier outputs, or over sums of blocks of them."""

import abc
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from resjax.combinators.base import OUTPUT, Layer, TokenContext, Views, check_flag
from resjax.combinators.depth_reader import DepthBlocks, DepthReader, Reader
from resjax.combinators.numerics import rms_normalized
from resjax.combinators.pre_norm import Norms, PreNorm, are_pre_norms
from resjax.combinators.source import DepthState, check_layer, check_used
from resjax.kernels.depth_attention import Sources, depth_attention_merge
from resjax.typing import Array


class _OutputReader(DepthReader):
  """A reader that has a pseudo-query and a key gain for the output too."""

  def __init__(self, *, views: str = "x", **options: Any):
    super().__init__(**options)
    self._add_views(views)
    self.final_query = nnx.Param(jnp.zeros(self.d_model))
    self.final_key_scale = nnx.Param(jnp.ones(self.d_model))

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
    """See `Combinator.final`."""
    return self._attend_with(self._reader(self.num_layers, OUTPUT), state.sources)[0]

  def _reader(self, layer: Layer, site: str, view: str = "x") -> Reader:
    if site == OUTPUT:
      return {"query": self.final_query[...], "key_scale": self.final_key_scale[...]}
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

  Args:
    views: what the attention, the first site of a layer, reads: `x`; `qk_v`, one read for queries
      and keys and another for values (RD-AttnRes); or `qkv`, one each (Inkling 2).
    num_heads: H, a divisor of D; 1 is Full Attention Residuals, more is Multi-Head (MHAR).
    eps: added to the mean square of a source in its norm; > 0.
    implementation: of the read, see `depth_attention`; `auto` takes the best that can run.

  Raises:
    ValueError: num_heads or eps out of range.

  Source: Attention Residuals (Full), arXiv 2603.15031; with heads, arXiv 2607.27230.
  """

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

  def write(
    self, state: DepthState, layer: Layer, site: str, out: Array, *,
    normed: Views | None = None, tape: Any = None,
  ) -> DepthState:  # fmt: skip
    """See `Combinator.write`."""
    check_layer(layer, state.sources)
    check_used(self.view_names(site), normed, site)
    return DepthState(tape.sources.append(out))


class BlockAttnRes(DepthBlocks, _OutputReader):
  """h_i = depth attention over [x, sums of completed depth blocks, running sum of this block].

  A depth block is `layers_per_block` layers; its source is the sum of its sublayers' outputs. The
  last block may be shorter. The first sublayer of a block does not see the (empty) running sum.
  The output read sees x and all block sums. Heads are those of `attn_res`.

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
      where a kernel can run and moves fewer bytes. `always` needs one head, and uses plain JAX
      where no kernel can run. `never` reads all sources at every site.
    views: as in `attn_res`.
    num_heads: H, a divisor of D.
    eps: added to the mean square of a source, and with rms_block of an output; > 0.
    implementation: of the read, see `depth_attention`; `auto` takes the best that can run.

  Raises:
    ValueError: layers_per_block, two_phase, num_heads or eps out of range.

  Source: Attention Residuals (Block), arXiv 2603.15031; with heads, arXiv 2607.27230; rms_block:
    github.com/kimmichtank/rms-block-attnres, whose blocks are 4 sublayers.
  """

  def __init__(self, *, rms_block: bool = False, **options: Any):
    super().__init__(**options)
    check_flag("rms_block", rms_block)
    self.rms_block = rms_block
    self.equals_standard_at_init = not rms_block

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
          **self._reader(layer, site, view),
          last_valid=started,
          **self._kernel_options(norm),
        )
    return views, DepthState(sources, (running, *others), opened)

  def write(
    self, state: DepthState, layer: Layer, site: str, out: Array, *,
    normed: Views | None = None, tape: Any = None,
  ) -> DepthState:  # fmt: skip
    """See `Combinator.write`. The last integer layer of a block closes it."""
    check_layer(layer, state.sources)
    check_used(self.view_names(site), normed, site)
    outs = (out, rms_normalized(out, self.eps).astype(out.dtype)) if self.rms_block else (out,)
    running = jax.tree.map(jnp.add, tape.running, outs)
    state = DepthState(tape.sources, running, tape.opened)
    return self._close_if_ended(state, layer, site)
