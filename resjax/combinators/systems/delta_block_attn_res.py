"""Block Delta Attention Residuals: reads of the sums of depth blocks, added to the stream."""

from typing import Any

import jax.numpy as jnp

from resjax.base import Array
from resjax.combinators.base import Layer, Stream, TokenContext
from resjax.combinators.depth_reader import DepthBlocks
from resjax.combinators.source import DepthState
from resjax.combinators.systems.delta_attn_res import DeltaReader
from resjax.kernels.depth_attention import Sources


class DeltaBlockAttnRes(DepthBlocks, DeltaReader):
  """h_i = x + g_i ⊙ depth attention over [embedding, Δ_b of completed blocks],  x ← x + f(h_i).

  Δ_b is the sum of the outputs of depth block b, `layers_per_block` layers; what the running block
  has written is seen in x alone. All reads of the first block have one source, the embedding, so
  without a null source their queries get no gradient. Gates, null source and heads are as in
  `delta_attn_res`.

  State: N + 1 = ⌈L / layers_per_block⌉ + 1 sources, x, and the sum of the running block: (N + 3) D
  values per token. Parameters and init as in `delta_attn_res`. The completed sources do not sum to
  x, so a fresh network is a `standard` one with output_gate `alpha` only, where α = 0 makes it one
  exactly.

  The authors' code differs: it stores x minus the previous *difference*, not minus x at the start
  of the block, so that its third source is x_0 + Δ_2, its fourth Δ_1 + Δ_3; and it appends a
  source only after the first read of the next block. Published numbers may come from that code;
  here sources are the deltas of the paper, complete when their block is. Its blocks are counted
  instead of their layers: num_blocks = 8 by default. Its mode `delta_block_v` never appends a
  source and hands the second read to an attention that ignores it; `qk_v` is what its name says.

  Args:
    layers_per_block: layers summed into one source, 1..L; the last block may be shorter.
    two_phase: whether a scan reads all sources once per block, as in `block_attn_res`; without a
      null source.
    output_gate: `none`, `scalar`, `vector` or `alpha`.
    null_source: whether the softmax has a null source.
    views: `x`, `qk_v` or `qkv`, as in `attn_res`.
    num_heads: H, a divisor of D.
    eps: added to the mean square of a source in its norm; > 0.
    implementation: of the read, see `depth_attention`; `auto` takes the best that can run.

  Raises:
    ValueError: layers_per_block, two_phase, output_gate, num_heads or eps out of range.

  Source: Delta Attention Residuals (Block), arXiv 2605.18855; see `delta_attn_res`.
  """

  def __init__(self, **options: Any):
    super().__init__(**options)
    self.equals_standard_at_init = self.output_gate == "alpha"

  def init(self, x: Stream, tokens: TokenContext | None = None) -> DepthState:
    """See `Combinator.init`. Sites hand on the stream and the sum of the running block."""
    return DepthState(Sources(recent=(x,)), (x, jnp.zeros_like(x)))

  def close_block(self, state: DepthState) -> DepthState:
    """See `Combinator.close_block`. The sum of the running block becomes a source."""
    stream, delta = state.running
    return DepthState(state.sources.append(delta), (stream, jnp.zeros_like(delta)))

  def _after(self, state: DepthState, layer: Layer, site: str, out: Array, tape: Any) -> DepthState:
    """See `SourceMixer._after`. The last integer layer of a block closes it."""
    stream, delta = state.running
    state = DepthState(tape.sources, (stream + out, delta + out), tape.opened)
    return self._close_if_ended(state, layer, site)

  def final(self, state: DepthState) -> Stream:
    return state.running[0]
