"""DeepCrossAttention: queries, keys, values and residual base are mixes of their own."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from resjax.base import Array
from resjax.combinators.base import Layer, Stream, TokenContext, Views
from resjax.combinators.checks import check_choice, check_option
from resjax.combinators.layer_mixing import LayerMixer
from resjax.combinators.ragged import RaggedRows
from resjax.combinators.source import DepthState
from resjax.kernels.depth_attention import Sources, depth_sum, gated_depth_sum

_VIEWS = ("q", "k", "v", "x")


class DeepCrossAttention(LayerMixer):
  """Four residual networks (GRN) per layer give its q, k, v and residual base x.

  version 1  g = Σ_j b_j g_j,                          b: one scalar per source
  version 2  g = Σ_j b_j ⊙ g_j,                        b: [D] per source
  version 3  g = Σ_j (b_j + relu(w · g_j)) ⊙ g_j,      and w: [D]

  g_0 = x, and g_j is what layer j adds: the sum of its branches' outputs, without its input. The
  first site of a layer reads q, k, v and x; the others read x plus the outputs so far. The output
  is a GRN over all g_0..g_L.

  With `last` = k > 0 (k-DCA) the sources of layer i are g_0, the plain sum of g_1..g_{i−k}, and
  the last k; else all of them. That saves reads, and state in decoding; in training a scan keeps
  the k + 2 sources of every layer, more than the L + 1 of all.

  State: N = L + 1 sources, or k + 2, and the layer's stream and output: (N + 2) D values per
  token. With n_i ≤ N the sources of layer i, and L itself for the output, parameters are
  Σ_{i<L} 4 n_i + n_L times 1 (version 1) or D (2, 3), and in version 3 (4 L + 1) D for w. b is one
  at init, the plain sum, hence `standard`; w is N(0, 0.02² / D), with which a read of version 3 is
  the plain sum up to about 1 %: at w = 0 the relu never lets a gradient through.

  Args:
    version: 1, 2 or 3.
    last: k of k-DCA, 0..L − 1; 0 means that all sources are kept apart.

  Raises:
    ValueError: version or last out of range.

  Source: DeepCrossAttention, arXiv 2502.06785. There is no official code. The paper counts three
  GRNs per layer; the fourth is the separate residual input of the MLP.
  """

  output_has_mix = False

  def __init__(self, *, version: int = 3, last: int = 0, rngs: nnx.Rngs, **options: Any):
    super().__init__(**options)
    self.version = check_choice("version", version, (1, 2, 3))
    check_option("last", last, 0 <= last < self.num_layers, f"0..{self.num_layers - 1} (layers)")
    self.last = last
    self.strategy = "carry" if last else "history"
    self.equals_standard_at_init = version != 3
    columns = [self._slots(i) for i in range(self.num_layers)]
    self.rows = RaggedRows.of(columns, self._num_slots)
    width = () if version == 1 else (self.d_model,)
    self.bias = nnx.Param(jnp.ones((self.rows.size, len(_VIEWS), *width)))
    self.final_bias = nnx.Param(jnp.ones((self._num_slots, *width)))
    if version == 3:
      self.per_layer = ("query",)
      draw = nnx.initializers.normal(0.02 * self.d_model**-0.5)
      shape = (self.num_layers, len(_VIEWS), self.d_model)
      self.query = nnx.Param(draw(rngs.params(), shape))
      self.final_query = nnx.Param(draw(rngs.params(), (self.d_model,)))

  @property
  def _num_slots(self) -> int:
    return self.last + 2 if self.last else self.num_layers + 1

  def _slots(self, layer: int) -> tuple[int, ...]:
    """Returns the slots that hold the sources of a layer: g_0, with k the sum, then the last."""
    if not self.last:
      return tuple(range(layer + 1))
    summed = (1,) if layer > self.last else ()
    kept = min(layer, self.last)
    return (0, *summed, *range(self._num_slots - kept, self._num_slots))

  def init(self, x: Stream, tokens: TokenContext | None = None) -> DepthState:
    """See `Combinator.init`. Slots of k-DCA that hold nothing yet are zero and have no weight."""
    if not self.last:
      return super().init(x, tokens)
    empty = (jnp.zeros_like(x),) * (self.last + 1)
    return DepthState(Sources(recent=(x, *empty)), self._first_running(x))

  def _append(self, sources: Sources, layer: Layer, output: Array) -> Sources:
    if not self.last:
      return sources.append(output)
    x, summed, oldest, *newer = sources.recent
    return Sources(recent=(x, summed + oldest, *newer, output))

  def view_names(self, site: str) -> tuple[str, ...]:
    return _VIEWS if site == self.sites[0] else ("x",)

  def source_names(self) -> tuple[str, ...]:
    """See `Combinator.source_names`. There are none, because each view has weights of its own."""
    return ()

  def _mix(self, state: DepthState, layer: Layer) -> Views:
    bias = state.sources.in_slot_order(self.rows.row(self.bias[...], layer))
    query = self._layer_row(self.query, layer) if self.version == 3 else (None,) * len(_VIEWS)
    return {
      view: self._grn(state.sources, bias[:, index], query[index])
      for index, view in enumerate(_VIEWS)
    }

  def _grn(self, sources: Sources, bias: Array, query: Array | None) -> Array:
    if query is None:
      return depth_sum(sources, bias)
    return gated_depth_sum(sources, bias, query)

  def final(self, state: DepthState) -> Stream:
    return self._output_grn(state.sources)

  def final_after(self, state: DepthState, layer: Layer, site: str) -> Stream:
    """See `Combinator.final_after`. The GRN of the output takes the g that exist."""
    return self._output_grn(self._ended(state, layer, site))

  def _output_grn(self, sources: Sources) -> Array:
    query = self.final_query[...] if self.version == 3 else None
    return self._grn(sources, sources.in_slot_order(self.final_bias[...]), query)
