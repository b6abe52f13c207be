"""ELC-BERT: every layer chooses which earlier layers it reads."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.base import Array
from resjax.combinators.base import OUTPUT, Layer, SourceWeights, Stream, Views
from resjax.combinators.checks import check_choice, check_flag, check_option
from resjax.combinators.layer_mixing import LayerMixer, LayerStream
from resjax.combinators.numerics import standardized
from resjax.combinators.ragged import RaggedRows
from resjax.combinators.source import DepthState
from resjax.kernels.depth_attention import Sources, depth_sum


class ELC(LayerMixer):
  """x̂_i = Σ_{j≤i} softmax_j(a_i) y_j; layer i = 0..L−1 reads x̂_i and leaves y_{i+1}.

  y_0 = x, and y_{i+1} is the sum of the outputs of the layer's branches: nothing is added to a
  stream from layer to layer. With attention and MLP, and f_s for a branch with its norm:

  `base`        h = f_attention(x̂),  y = h + f_mlp(h)
  `zero`        h = f_attention(x̂),  y = h + f_mlp(x̂ + h)
  `normalized`  as `zero`, y without its mean and divided by its standard deviation

  Further sites read on in the same way: the sum of what came before them in the layer, without x̂
  in `base`. The output is y_L, or with `weighted_output` one more mix, of all y_0..y_L. The
  authors train a masked encoder with norms after attention and MLP weights that shrink with depth;
  here the branches are the decoder's, and since mixing is within a token they may be causal.

  State: y_0..y_L and the stream, D more where its sum is kept apart: (L + 2) D values per token in
  `base`, else (L + 3) D. Parameters: i + 1 logits for layers i = 1..L−1, L (L + 1) / 2 − 1 in all
  (the first layer has one source and no choice), and L + 1 for the weighted output. At init logits
  are zero, in `base` one for the newest source; never `standard`.

  Args:
    variant: `base`, `zero` or `normalized`.
    weighted_output: whether the output is a mix of all layers; its logits start at zero. The
      released code has it with `zero` alone.
    eps: added to the variance of a normalised output; > 0.

  Raises:
    ValueError: variant or eps out of range.

  Source: Not all layers are equally as important (ELC-BERT), arXiv 2311.02265; what distinguishes
  the variants is taken from the released code.
  """

  equals_standard_at_init = False
  output_has_mix = False

  def __init__(
    self, *, variant: str = "base", weighted_output: bool = False, eps: float = 1e-6, **options: Any
  ):
    super().__init__(**options)
    self.variant = check_choice("variant", variant, ("base", "zero", "normalized"))
    self.weighted_output = check_flag("weighted_output", weighted_output)
    self.eps = check_option("eps", eps, eps > 0, "eps > 0")
    self.stream_has_mix = variant != "base"
    readers = self.num_layers + self.weighted_output
    columns = [range(i + 1) if i else () for i in range(readers)]
    self.rows = RaggedRows.of(columns, self.num_layers + 1)
    logits = np.zeros((readers, self.num_layers + 1))
    if variant == "base":
      np.fill_diagonal(logits[: self.num_layers], 1.0)  # the newest source of every layer
    self.logits = nnx.Param(jnp.asarray(self.rows.pack(logits)))

  def _mix(self, state: DepthState, layer: Layer) -> Views:
    return {"x": self._choose(state.sources, layer)}

  def _choose(self, sources: Sources, i: Layer) -> Array:
    """Returns x̂_i, what layer i reads: the sum of earlier outputs by its weights."""
    return depth_sum(sources, sources.in_slot_order(self._shares(i, i)))

  def _shares(self, i: Layer, newest: int | Array) -> Array:
    """Returns softmax(a_i) [N] over the sources up to the newest one, and 0 for the others."""
    exists = jnp.arange(self.num_layers + 1, dtype=jnp.int32) <= jnp.asarray(newest, jnp.int32)
    return jax.nn.softmax(jnp.where(exists, self.rows.row(self.logits[...], i), -jnp.inf))

  def _output(self, running: LayerStream) -> Array:
    y = super()._output(running)
    if self.variant != "normalized":
      return y
    return standardized(y, self.eps).astype(y.dtype)

  def final(self, state: DepthState) -> Stream:
    if self.weighted_output:
      return self._choose(state.sources, self.num_layers)
    return self._output(state.running)

  def depth_weights(self, state: DepthState, layer: Layer, site: str) -> SourceWeights | None:
    """See `Combinator.depth_weights`. They are the same for all tokens."""
    if site != self.sites[0] and not (site == OUTPUT and self.weighted_output):
      return None
    return self._shares(layer, layer)[:, None, None]

  def final_after(self, state: DepthState, layer: Layer, site: str) -> Stream:
    """See `Combinator.final_after`. A weighted output is a softmax over the y that exist."""
    if not self.weighted_output:
      return self._output(state.running)
    sources = self._ended(state, layer, site)
    return depth_sum(sources, sources.in_slot_order(self._shares(self.num_layers, layer + 1)))
