"""U-Net skips: layers of the second half read what the first half left, in reverse order."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from resjax.combinators.base import Layer, TokenContext, Views
from resjax.combinators.numerics import scaled_add
from resjax.combinators.source import DepthState, EnteredStream, check_layer
from resjax.kernels.depth_attention import Sources
from resjax.typing import Array


class UNetSkips(EnteredStream):
  """Before layer l of the last ⌊L/2⌋: x ← x + w_l x_(L−1−l), the stream after layer L−1−l.

  Every site: x ← x + f(x). Layers of the first half push their output, those of the second half pop
  the latest; if L is odd the middle layer does neither.

  State: the embedding and the stream after every layer, (L + 1) D values per token. Parameters:
  w [⌊L/2⌋], zero at init, which is `standard`; the released code starts at one.

  Args:
    num_layers: L, at least 2.

  Raises:
    ValueError: num_layers below 2.

  Source: the released code of modded-nanogpt; no paper.
  """

  def __init__(self, **options: Any):
    super().__init__(**options)
    if self.num_layers < 2:
      raise ValueError(f"num_layers={self.num_layers} has no second half; allowed: at least 2")
    self.weight = nnx.Param(jnp.zeros(self.num_skips))

  @property
  def num_skips(self) -> int:
    """The number of layers that read a skip, ⌊L/2⌋."""
    return self.num_layers // 2

  def init(self, x: Array, tokens: TokenContext | None = None) -> DepthState:
    """See `Combinator.init`."""
    return DepthState(Sources(recent=(x,)))

  def write(
    self, state: DepthState, layer: Layer, site: str, out: Array, *,
    normed: Views | None = None, tape: Any = None,
  ) -> DepthState:  # fmt: skip
    """See `Combinator.write`. Between layers the stream is the last source."""
    check_layer(layer, state.sources)
    if site != self.sites[-1]:
      return DepthState(state.sources, tape + out)
    return DepthState(state.sources.append(tape + out))

  def final(self, state: DepthState) -> Array:
    """See `Combinator.final`."""
    return state.sources.from_end()

  def final_after(self, state: DepthState, layer: Layer, site: str) -> Array:
    """See `Combinator.final_after`. It is the stream."""
    return self.final(state) if state.running is None else state.running

  def _enter(self, state: DepthState, layer: Layer) -> Array:
    """Returns the stream before a layer; the reverse pass keeps the sources as they are."""
    sources = state.sources
    skip = layer - (self.num_layers - self.num_skips)
    place = self.num_layers - layer  # source i is the stream after i layers
    if not isinstance(layer, int):
      weight = jnp.where(skip < 0, 0, self.weight[...][jnp.maximum(skip, 0)])
      place = jnp.minimum(place, layer)  # in the first half that source does not exist yet
    elif skip < 0:
      return sources.from_end()
    else:
      weight = self.weight[...][skip]
    add = jax.checkpoint(
      lambda sources, weight: scaled_add(weight, sources.at(place), sources.from_end()),
      prevent_cse=False,
    )
    return add(sources, weight)
