"""SiameseNorm: a post-norm stream and a pre-norm stream, both written by the same branches."""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from resjax.combinators.base import Combinator, Layer, Stream, TokenContext, Views
from resjax.combinators.checks import check_option
from resjax.combinators.numerics import scaled_add, scaled_norm


class SiameseNorm(Combinator):
  """x̂ = N(x);  z = f(x̂ + N(y));  x ← x̂ + z / √(sites (l + 1));  y ← y + z, in layer l = 0..L-1.

  The stream x is normalised at every site, as in post-norm, and y never, as in pre-norm. Each N is
  an RMS norm with a gain [D] of its own. What f reads goes through the norm of the model as well,
  and so does the output, N(x) + N(y), through its final norm. Both streams start as the embedding.
  With two sites the divisor is that of the source, √(2 (l + 1)).

  State: x and y, 2 D values per token. Parameters: 2 D (L · sites + 1), gains one at init.

  The source has three forms. This one, for which all sites are alike, is its own for DeiT and DiT
  (with LayerNorm); its language models also have one whose attention sites leave x as it is.

  Args:
    eps: added to the mean square of a stream in its norm; > 0.

  Raises:
    ValueError: eps out of range.

  Source: SiameseNorm, arXiv 2602.08064; code Qwen-Applications/SiameseNorm.
  """

  family = "streams"
  equals_standard_at_init = False
  per_layer = ("post_gain", "pre_gain")

  def __init__(self, *, eps: float = 1e-6, **options: Any):
    super().__init__(**options)
    self.eps = check_option("eps", eps, eps > 0, "eps > 0")
    of_sites = (self.num_layers, len(self.sites), self.d_model)
    self.post_gain, self.pre_gain = nnx.Param(jnp.ones(of_sites)), nnx.Param(jnp.ones(of_sites))
    self.final_post_gain = nnx.Param(jnp.ones(self.d_model))
    self.final_pre_gain = nnx.Param(jnp.ones(self.d_model))

  def init(self, x: Stream, tokens: TokenContext | None = None) -> tuple[Stream, Stream]:
    return x, x

  def read(self, state: tuple[Stream, Stream], layer: Layer, site: str) -> tuple[Views, Any]:
    """See `Combinator.read`. The tape holds x̂."""
    gains = (self._row(p, layer, site) for p in (self.post_gain, self.pre_gain))
    post, pre = (scaled_norm(x, g, self.eps) for x, g in zip(state, gains, strict=True))
    return {"x": post + pre}, post

  def write(
    self, state: tuple[Stream, Stream], layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> tuple[Stream, Stream]:  # fmt: skip
    """See `Combinator.write`. It needs the tape."""
    sublayers = jnp.asarray(len(self.sites) * (layer + 1), self.post_gain.dtype)
    return scaled_add(sublayers**-0.5, out, tape), state[1] + out

  def final(self, state: tuple[Stream, Stream]) -> Stream:
    gains = (self.final_post_gain[...], self.final_pre_gain[...])
    post, pre = (scaled_norm(x, g, self.eps) for x, g in zip(state, gains, strict=True))
    return post + pre
