"""DenseFormer: static weighted averages of the outputs of all earlier layers."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.base import Array
from resjax.combinators.base import OUTPUT, Layer, SourceWeights, Stream, Views
from resjax.combinators.checks import check_option
from resjax.combinators.layer_mixing import LayerMixer
from resjax.combinators.ragged import RaggedRows
from resjax.combinators.source import DepthState
from resjax.kernels.depth_attention import Sources, depth_sum


class DenseFormer(LayerMixer):
  """Y_i = Σ_{j≤i} α_ij X_j after layer i; layer i + 1 starts its stream at Y_i and leaves X_{i+1}.

  X_0 = x, and X_i is the stream at the end of layer i = 1..L, before it is averaged: each layer
  keeps its residual adds, around Y. The last average, Y_L, is the output. Weights are free in sign
  and sum. With dilation k only j ≡ i (mod k) take part; with period p only Y_i with i ≡ 0 (mod p)
  are averages, the others are X_i. The paper writes k × p.

  State: X_0..X_L and the stream: (L + 2) D values per token. Parameters: ⌈(i + 1) / k⌉ scalars for
  each average, L (L + 3) / 2 for 1 × 1; one-hot at j = i at init, which is `standard`. A source
  that takes no part has weight zero and is read all the same, so dilation and period do not make
  this implementation faster.

  Args:
    dilation: k, 1..L.
    period: p, 1..L.

  Raises:
    ValueError: dilation or period out of range.

  Source: DenseFormer, arXiv 2402.02622. Its code decays the weights and draws them with the
  initialiser of all linear maps; here they start one-hot and are not decayed.
  """

  def __init__(self, *, dilation: int = 1, period: int = 1, **options: Any):
    super().__init__(**options)
    allowed = f"1..{self.num_layers} (layers)"
    check_option("dilation", dilation, 1 <= dilation <= self.num_layers, allowed)
    check_option("period", period, 1 <= period <= self.num_layers, allowed)
    num_sources = self.num_layers + 1
    columns = [
      () if i == 0 or i % period else range(i % dilation, i + 1, dilation)
      for i in range(num_sources)
    ]
    self.rows = RaggedRows.of(columns, num_sources)
    self.weight = nnx.Param(jnp.asarray(self.rows.pack(np.eye(num_sources))))

  def _mix(self, state: DepthState, layer: Layer) -> Views:
    return {"x": self._average(state.sources, layer)}

  def final(self, state: DepthState) -> Stream:
    return self._average(state.sources, self.num_layers)

  def final_after(self, state: DepthState, layer: Layer, site: str) -> Stream:
    """See `Combinator.final_after`. After a layer it is Y, within a layer the stream."""
    if site != self.sites[-1]:
      return state.running.stream
    return self._average(state.sources, layer + 1)

  def depth_weights(self, state: DepthState, layer: Layer, site: str) -> SourceWeights | None:
    """See `Combinator.depth_weights`. They are the same for all tokens."""
    if site not in (self.sites[0], OUTPUT):
      return None
    return self._weights(layer)[:, None, None]

  def _average(self, sources: Sources, i: Layer) -> Array:
    return depth_sum(sources, sources.in_slot_order(self._weights(i)))

  def _weights(self, i: Layer) -> Array:
    return self.rows.row(self.weight[...], i) + self.rows.newest_of_empty(i)
