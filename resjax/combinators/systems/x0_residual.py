"""The embedding is mixed into the stream before every layer; the output may take mid-depth out."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.base import Array, wide_dtype
from resjax.combinators.base import Layer, Stream, TokenContext, Views
from resjax.combinators.checks import check_choice, check_flag
from resjax.combinators.numerics import recomputed, scaled_add
from resjax.combinators.source import DepthState, EnteredStream, check_layer
from resjax.kernels.depth_attention import Sources

INITS = ("standard", "nanochat")


class X0Residual(EnteredStream):
  """Before layer l: x ← λ_l x + μ_l x0, with x0 the embedding; every site: x ← x + f(x).

  With `backout` the output is x − b x_mid, where x_mid leaves layer ⌊L/2⌋ (counted from 0).

  State: x and x0, 2 D values per token, and with `backout` the stream after each half, 4 D (3 D
  where ⌊L/2⌋ is the last layer). Parameters: λ, μ [L], and b.

  Init `standard`: λ = 1, μ = 0, b = 0. Init `nanochat`: λ from 1.15 to 1.05 and μ from 0.20 to 0.05
  linearly in depth, b = 0.2; these numbers are for a normalised embedding, as that code has.

  Learning rates: nanochat has 0.5 for μ, 0.2 for b, and 0.005 for λ, which multiplies the stream in
  every layer: config.optim.combinator_lr_multipliers = ("stream_scale=0.01", "backout_scale=0.4")
  where combinator_lr_multiplier suits μ. It reports 0.0103 bits per byte less at 8 layers, but only
  0.0039 at 20, and that values tuned at 12 layers are harmful at 20.

  Args:
    init: `standard` or `nanochat`.
    backout: whether the final read takes out a share of the stream of mid-depth.

  Raises:
    ValueError: init or backout out of range.

  Source: the released code of nanochat and modded-nanogpt; no paper.
  """

  per_layer = ("stream_scale", "embedding_scale")

  def __init__(self, *, init: str = "standard", backout: bool = False, **options: Any):
    super().__init__(**options)
    check_choice("init", init, INITS)
    self.backout = check_flag("backout", backout)
    as_released = init == "nanochat"
    self.equals_standard_at_init = not as_released
    stream, embedding = (1.0, 1.0), (0.0, 0.0)
    if as_released:
      stream, embedding = (1.15, 1.05), (0.20, 0.05)
    self.stream_scale = nnx.Param(_linear(*stream, self.num_layers))
    self.embedding_scale = nnx.Param(_linear(*embedding, self.num_layers))
    if backout:
      self.backout_scale = nnx.Param(jnp.asarray(0.2 if as_released else 0.0))
      self.strategy = "depth_blocks"
      self.layers_per_block = self._middle + 1

  @property
  def _middle(self) -> int:
    return self.num_layers // 2

  def init(self, x: Stream, tokens: TokenContext | None = None) -> DepthState:
    return DepthState(Sources(recent=(x,)), x)

  def _enter(self, state: DepthState, layer: Layer) -> Array:
    scales = (self._layer_row(p, layer) for p in (self.stream_scale, self.embedding_scale))
    return mixed_with_embedding(state.sources, state.running, *scales)

  def write(
    self, state: DepthState, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> DepthState:  # fmt: skip
    """See `Combinator.write`. With `backout` the last integer layer of a half closes it."""
    state = DepthState(state.sources, tape + out)
    if not self.backout:
      return state
    check_layer(layer, state.sources)
    ends_layer = isinstance(layer, int) and site == self.sites[-1]
    ends_half = ends_layer and layer in (self._middle, self.num_layers - 1)
    return self.close_block(state) if ends_half else state

  def close_block(self, state: DepthState) -> DepthState:
    """See `Combinator.close_block`. With `backout` the stream becomes a source."""
    return DepthState(state.sources.append(state.running), state.running) if self.backout else state

  def final(self, state: DepthState) -> Stream:
    if not self.backout:
      return state.running
    return scaled_add(-self.backout_scale[...], state.sources.at(1), state.running)

  def final_after(self, state: DepthState, layer: Layer, site: str) -> Stream:
    """See `Combinator.final_after`. `backout` begins where a stream of mid-depth exists."""
    if not self.backout:
      return state.running
    ended = layer if site == self.sites[-1] else layer - 1  # the last whole layer
    if isinstance(layer, int):
      return self.final(state) if ended >= self._middle else state.running
    # When a scan has run the middle layer, its stream is not yet a source.
    middle = jnp.where(layer == self._middle, state.running, state.sources.at(1))
    scale = jnp.where(ended >= self._middle, -self.backout_scale[...], 0)
    return scaled_add(scale, middle, state.running)


@recomputed
def mixed_with_embedding(
  sources: Sources, x: Array, stream_scale: Array, embedding_scale: Array
) -> Array:
  """Returns λ x + μ x0 in the dtype of x, where x0 is the first source."""
  wide = wide_dtype(x)
  mixed = stream_scale * x.astype(wide) + embedding_scale * sources.at(0).astype(wide)
  return mixed.astype(x.dtype)


def _linear(first: float, last: float, num_layers: int) -> Array:
  return jnp.asarray(np.linspace(first, last, num_layers))
