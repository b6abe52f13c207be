"""U-Net skips: layers of the second half read what the first half left, in reverse order."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from resjax.base import Array
from resjax.combinators.base import Layer, Stream, TokenContext, Views
from resjax.combinators.checks import check_flag
from resjax.combinators.numerics import scaled_add
from resjax.combinators.source import DepthState, EnteredStream, check_layer
from resjax.combinators.systems.x0_residual import mixed_with_embedding
from resjax.kernels.depth_attention import Sources


class UNetSkips(EnteredStream):
  """Before layer l of the last ⌊L/2⌋: x ← x + w_l x_(L−1−l), the stream after layer L−1−l.

  Every site: x ← x + f(x). Layers of the first half push their output, layers of the second half
  pop the latest; if L is odd the middle layer does neither. With `mix_embedding` layer l begins
  with x ← λ_l x + μ_l x0 as in `X0Residual`, x0 the embedding, and the skip is added to that.

  State: the embedding and the stream after every layer, (L + 1) D values per token. Parameters:
  w [⌊L/2⌋], zero at init, which is `standard`; the released code starts at one. With
  `mix_embedding` also λ [L] at one and μ [L] at zero. Speedruns give λ a learning rate of about a
  hundredth of that of μ; config.optim.combinator_lr_multipliers sets them.

  Learning rates: the released code gives w five times the rate of its output head, which is
  config.optim.combinator_lr_multiplier = 5 where all else has one rate.

  Args:
    mix_embedding: whether the embedding is mixed in before every layer, as speedruns do; nanochat
      found gains of λ and μ that shrink with depth, and none of a skip.
    num_layers: L, at least 2.

  Raises:
    ValueError: num_layers below 2, or mix_embedding is no flag.

  Source: the released code of modded-nanogpt; no paper.
  """

  def __init__(self, *, mix_embedding: bool = False, **options: Any):
    super().__init__(**options)
    self.mix_embedding = check_flag("mix_embedding", mix_embedding)
    if self.num_layers < 2:
      raise ValueError(f"num_layers={self.num_layers} has no second half; allowed: at least 2")
    self.weight = nnx.Param(jnp.zeros(self.num_skips))
    if mix_embedding:
      self.stream_scale = nnx.Param(jnp.ones(self.num_layers))
      self.embedding_scale = nnx.Param(jnp.zeros(self.num_layers))
      self.per_layer = ("stream_scale", "embedding_scale")

  @property
  def num_skips(self) -> int:
    """The number of layers that read a skip, ⌊L/2⌋."""
    return self.num_layers // 2

  def init(self, x: Stream, tokens: TokenContext | None = None) -> DepthState:
    return DepthState(Sources(recent=(x,)))

  def write(
    self, state: DepthState, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> DepthState:  # fmt: skip
    """See `Combinator.write`. Between layers the stream is the last source."""
    check_layer(layer, state.sources)
    if site != self.sites[-1]:
      return DepthState(state.sources, tape + out)
    return DepthState(state.sources.append(tape + out))

  def final(self, state: DepthState) -> Stream:
    return state.sources.from_end()

  def final_after(self, state: DepthState, layer: Layer, site: str) -> Stream:
    """See `Combinator.final_after`. It is the stream."""
    return self.final(state) if state.running is None else state.running

  def _enter(self, state: DepthState, layer: Layer) -> Array:
    """Returns the stream before a layer; the reverse pass keeps the sources as they are."""
    check_layer(layer, state.sources)
    sources, scales = state.sources, self._scales(layer)
    skip = layer - (self.num_layers - self.num_skips)
    place = self.num_layers - layer  # source i is the stream after i layers
    if not isinstance(layer, int):
      weight = jnp.where(skip < 0, 0, self.weight[...][jnp.maximum(skip, 0)])
      place = jnp.minimum(place, layer)  # in the first half that source does not exist yet
    elif skip < 0:
      return _begun(sources, *scales)
    else:
      weight = self.weight[...][skip]
    add = jax.checkpoint(
      lambda sources, weight, *scales: scaled_add(
        weight, sources.at(place), _begun(sources, *scales)
      ),
      prevent_cse=False,
    )
    return add(sources, weight, *scales)

  def _scales(self, layer: Layer) -> tuple[Array, ...]:
    """Returns λ and μ of a layer, or nothing where the embedding is not mixed in."""
    if not self.mix_embedding:
      return ()
    return self._layer_row(self.stream_scale, layer), self._layer_row(self.embedding_scale, layer)


def _begun(sources: Sources, *scales: Array) -> Array:
  """Returns the stream, which is the last source, with the embedding mixed in if there are λ, μ."""
  stream = sources.from_end()
  return mixed_with_embedding(sources, stream, *scales) if scales else stream
