"""Gated Residual: several streams, read through a gate per channel that is the pre-norm too."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from resjax.base import Array, wide_dtype
from resjax.combinators.base import OUTPUT, Combinator, Layer, Stream, Streams, TokenContext, Views
from resjax.combinators.checks import check_choice, check_flag, check_option
from resjax.combinators.numerics import recomputed
from resjax.kernels import IMPLEMENTATIONS, repeated
from resjax.kernels.gated_streams import gated_read

_INITS = ("neutral", "published")
_STD = 0.02  # of matrices at init, the published backbone's


class GatedResidual(Combinator):
  """x = Σ_s G_s ⊙ R̂_s / R;  H_s ← H_s + g_s f(x), with R streams H_s and R̂_s = RMS(H_s) ⊙ γ_s.

  G = σ(W_up silu(W_down vec(R̂) / R)) is one gate per channel and stream [R, D], of low rank r, and
  g = 2 σ(W_inject vec(R̂) / R) one number per stream [R], for every token. The streams start as R
  copies of the embedding and are never mixed. The output is one more read, with γ, W_down and W_up
  of its own. What is read is normalised: a model has neither pre-norms nor a final norm, whatever
  its `norm` is.

  State: R D values per token. Parameters: L · sites (R D (2 r + R + 1)) + R D (2 r + 1), less
  (R − 1) D for every γ with `shared_gain`. With r = D/8 and R = 4 a site has D² of them, 17 % of a
  dense layer, so compare with a wider MLP (configs/ablations/gated_residual.py). In sparse models
  they are next to nothing. W_down, W_up and W_inject take weight decay; AdamW updates them.

  At init, by `init`:
    neutral    W_up = W_inject = 0 and γ = 2: all streams are the stream of `standard`, and a read
               is its RMS norm. W_down is normal (0.02), so that streams part from the second update
               on.
    published  all matrices are normal (0.02), γ = 1. Not `standard`: branches read about half.
  The released code stores γ − 1.

  When to use it: in large sparse models. At 25B-A3B and 560B tokens the paper reports a loss of
  1.590, with 1.594 for mHC and 1.617 for pre-norm; against it stand 1.762 where Full AttnRes has
  1.758 (28 layers), and slow decoding where its steps are not fused.

  Args:
    num_streams: R, at least 1.
    rank: r, 1..D; 0 chooses D/8, at least 1.
    shared_gain: whether all streams of a site share one γ [D].
    init: `neutral` or `published`.
    eps: added to the mean square of a stream in its norm; > 0.
    implementation: of `gated_read`; `auto` takes the best that can run.

  Raises:
    ValueError: an option out of range.

  Source: arXiv 2608.30320, eq. 21-34 (Qwen3.8-Flash-Next).
  """

  family = "streams"
  pre_norm = False
  final_norm = False
  needs_pre_norms = True
  per_layer = ("gain", "down", "up", "inject")
  decayed_parameters = ("down", "up", "inject", "final_down", "final_up")

  def __init__(
    self,
    *,
    num_streams: int = 4,
    rank: int = 0,
    shared_gain: bool = False,
    init: str = "neutral",
    eps: float = 1e-6,
    implementation: str = "auto",
    rngs: nnx.Rngs,
    **options: Any,
  ):
    super().__init__(**options)
    check_option("num_streams", num_streams, num_streams >= 1, "num_streams >= 1")
    check_option("rank", rank, 0 <= rank <= self.d_model, f"0..{self.d_model}")
    check_flag("shared_gain", shared_gain)
    check_choice("init", init, _INITS)
    check_option("eps", eps, eps > 0, "eps > 0")
    check_choice("implementation", implementation, ("auto", *IMPLEMENTATIONS))
    self.num_streams, self.eps, self.implementation = num_streams, eps, implementation
    self.equals_standard_at_init = init == "neutral"
    rank = rank or max(1, self.d_model // 8)
    own, self.initial_gain = (1 if shared_gain else num_streams), 2.0 if init == "neutral" else 1.0
    small = 0.0 if init == "neutral" else _STD
    sites, of_sites = (self.num_layers, len(self.sites)), ("layers", None)
    draw, down, up = partial(_matrix, rngs), (self.d_model, rank), (rank, self.d_model)
    self.gain = nnx.Param(jnp.full((*sites, own, self.d_model), self.initial_gain))
    self.down = draw(_STD, (*sites, num_streams, *down), (*of_sites, None, "embed_param", None))
    self.up = draw(small, (*sites, num_streams, *up), (*of_sites, None, None, "embed_param"))
    inject = (*sites, num_streams, self.d_model, num_streams)
    self.inject = draw(small, inject, (*of_sites, None, "embed_param", None))
    self.final_gain = nnx.Param(jnp.full((own, self.d_model), self.initial_gain))
    self.final_down = draw(_STD, (num_streams, *down), (None, "embed_param", None))
    self.final_up = draw(small, (num_streams, *up), (None, None, "embed_param"))

  def init(self, x: Stream, tokens: TokenContext | None = None) -> Streams:
    return repeated(x, self.num_streams)

  def read(self, state: Streams, layer: Layer, site: str) -> tuple[Views, Any]:
    """See `Combinator.read`. The tape holds the streams that are read, and g [R, ...]."""
    parameters = (self.gain, self.down, self.up, self.inject)
    weights = [self._row(p, layer, site) for p in parameters]
    x, logits, streams = self._gated_read(state, *weights)
    assert logits is not None  # there is W_inject
    return {"x": x}, (streams, 2 * jax.nn.sigmoid(logits))

  def write(
    self, state: Streams, layer: Layer, site: str, out: Stream, *,
    normed: Views | None = None, tape: Any = None,
  ) -> Streams:  # fmt: skip
    """See `Combinator.write`. It needs the tape."""
    return _written(*tape, out)

  def final(self, state: Streams) -> Stream:
    parameters = (self.final_gain, self.final_down, self.final_up)
    return self._gated_read(state, *(p[...] for p in parameters))[0]

  def from_norms(self, gains: Mapping[str, Float[Array, "..."]]) -> dict[str, Float[Array, "..."]]:
    plain = jnp.ones((self.num_layers, self.d_model))
    sites = jnp.stack([gains.get(site, plain) for site in self.sites], axis=1)
    found = {"gain": sites[:, :, None], "final_gain": gains[OUTPUT][None]}
    return {
      name: self.initial_gain * jnp.broadcast_to(gain, getattr(self, name).shape)
      for name, gain in found.items()
    }

  def _gated_read(
    self, state: Array, gain: Array, down: Array, up: Array, inject: Array | None = None
  ) -> tuple[Array, Array | None, Array | None]:
    gain, down, up = map(self._whole, (gain, down, up))
    inject = None if inject is None else self._whole(inject)
    implementation = None if self.implementation == "auto" else self.implementation
    return gated_read(
      state, gain, down, up, inject, eps=self.eps, layout=self.layout, implementation=implementation
    )

  def _whole(self, weight: Array) -> Array:
    """Gathers a weight: were it split over D, devices would exchange a product per token."""
    return self.layout.constrain(weight, *[None] * weight.ndim)


def _matrix(
  rngs: nnx.Rngs, std: float, shape: tuple[int, ...], axes: tuple[str | None, ...]
) -> nnx.Param[Array]:
  init = nnx.initializers.normal(std) if std else nnx.initializers.zeros
  return nnx.Param(init(rngs.params(), shape), axes=axes)


@recomputed  # or R copies of the output would be kept
def _written(streams: Streams, shares: Float[Array, "R ..."], out: Stream) -> Streams:
  """Returns H_s + g_s f [R, ..., D]."""
  wide = streams.astype(wide_dtype(streams))
  out = repeated(out.astype(wide.dtype), len(wide))
  return (shares[..., None] * out + wide).astype(streams.dtype)
