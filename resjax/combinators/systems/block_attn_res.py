"""Block Attention Residuals: depth attention over sums of the outputs of depth blocks."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from resjax.base import Array
from resjax.combinators.base import (
  OUTPUT,
  Layer,
  PreNorm,
  SourceWeights,
  Stream,
  TokenContext,
  Views,
)
from resjax.combinators.checks import check_choice, check_flag, check_option
from resjax.combinators.depth_reader import DepthBlocks, OutputReader
from resjax.combinators.depth_scores import Reader
from resjax.combinators.numerics import rms_normalized
from resjax.combinators.source import DepthState
from resjax.kernels.depth_attention import Sources, depth_attention_merge


class BlockAttnRes(DepthBlocks, OutputReader):
  """h_i = depth attention over [x, sums of completed depth blocks, running sum of this block].

  A depth block is `layers_per_block` layers; its source is the sum of its sublayers' outputs. The
  last block may be shorter. The first sublayer of a block does not see the (empty) running sum.
  The output read sees x and all block sums. Heads and the options of reads are as in `attn_res`;
  for dynamic_query z is the running sum, which is zero, hence no part of q, where a block begins.

  Inkling 2 has layers_per_block=6, value_norm, key_norm `plain`, scale `rsqrt`, views `qkv`. Only
  its full-attention layers, one in six, have three queries: the others are layers whose three
  queries, and pre-norms of x, k and v, are equal. (A scan needs layers of one form.)

  Differences within blocks as further sources (WAV or HAARES, arXiv 2606.06564, multi-resolution
  routing) are left out: the bias of their logits and the place of the running block are not
  published.

  At DepthBench (arXiv 2609.32534) trained softmaxes of the first block ignore its running sum, so
  that the layers of this block read the embedding again and again. `first_block="uniform"` rules
  that out: the reads of this block weigh x and the running sum alike, like those of a fresh
  network, and so are parallel to the stream x + Σ o_i of `standard`; queries choose between
  sources from the second block on.

  With `rms_block` a completed block is Σ_i RMS(o_i), without gain, over its outputs o_i; x and
  the running sum stay raw. A last block that is shorter counts as completed. Its uniform mean is
  not parallel to the stream, so a fresh network is not `standard`.

  State: N + 1 = ⌈L / layers_per_block⌉ + 1 sources and the running sum: (N + 2) D values per token,
  with rms_block (N + 3) D. Parameters: 2 D (L · sites + 1), init as in `attn_res`, hence equal to
  `standard` at init without rms_block.

  Args:
    layers_per_block: layers summed into one source, 1..L. (The paper's figure counts sublayers.)
    first_block: `free`, or `uniform`, where queries of the first block are not used.
    rms_block: whether outputs are normalised before they are summed into a completed block.
    two_phase: whether a scan reads the complete sources once for all sites of a block, and then
      merges the running sum site by site; the function is the same up to rounding. `auto` does so
      with several blocks where a kernel can run. `always` needs one head and a read that kernels
      cover, and uses plain JAX where none can run. `never` reads all sources at every site.
    value_norm: whether values are normalised; this and what follows is as in `attn_res`.
    key_norm: `gain`, `plain` or `none`.
    key_rank: 0..D.
    scale: `one`, `rsqrt` or `learned`.
    temperature: τ > 0.
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

  def __init__(self, *, first_block: str = "free", rms_block: bool = False, **options: Any):
    super().__init__(**options)
    self.first_block = check_choice("first_block", first_block, ("free", "uniform"))
    others = first_block == "free" or self.num_blocks > 1
    check_option("first_block", first_block, others, "free where there is one block")
    self.rms_block = check_flag("rms_block", rms_block)
    weights = self.scores.weights
    check_option("weights", weights, weights != "static", "softmax, sigmoid")
    self.equals_standard_at_init &= not rms_block

  def init(self, x: Stream, tokens: TokenContext | None = None) -> DepthState:
    """See `Combinator.init`. Sites read the first running sum; the last one becomes the source."""
    sums = (jnp.zeros_like(x),) * (2 if self.rms_block else 1)
    return DepthState(Sources(recent=(x,)), sums)

  def close_block(self, state: DepthState) -> DepthState:
    """See `Combinator.close_block`. A sum of the running block becomes a source."""
    sources = state.sources.append(state.running[-1])
    return DepthState(sources, jax.tree.map(jnp.zeros_like, state.running))

  def _has_started(self, layer: Layer, site: str) -> bool | Array:
    return (layer % self.layers_per_block != 0) | (site != self.sites[0])

  def _reader(self, layer: Layer, site: str, view: str = "x") -> Reader:
    reader = super()._reader(layer, site, view)
    return reader if site == OUTPUT else self._in_block(reader, layer >= self.layers_per_block)

  def _block_reader(self, sources: Sources) -> Reader:
    """See `DepthBlocks._block_reader`. The first block finds the embedding alone."""
    is_later = jnp.sum(sources.valid()) > 1
    return self._in_block(super()._block_reader(sources), is_later)

  def _in_block(self, reader: Reader, is_later: bool | Array) -> Reader:
    """Returns a reader of the first block, or a later one: without queries, weights are equal."""
    if self.first_block == "free":
      return reader
    chosen = {n: jnp.where(is_later, p, 0) for n, p in reader.items() if n.startswith("query")}
    return {**reader, **chosen}

  def depth_weights(self, state: DepthState, layer: Layer, site: str) -> SourceWeights | None:
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
