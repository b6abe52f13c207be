"""Hyper-Connections: several residual streams, read, mixed and written with free coefficients."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from resjax.base import Array
from resjax.combinators.base import Layer
from resjax.combinators.checks import check_choice, check_flag, check_option
from resjax.combinators.streams import Reading, ResidualStreams, one_hot_reads

_NORMS = ("layernorm", "rmsnorm")


class HyperConnections(ResidualStreams):
  """x = Σ_s α_s0 H_s;  H_r ← Σ_s α_sr H_s + β_r f(x), with R streams H_s.

  α [R, R+1] and β [R] are learned per site, and if `dynamic` every token adds to them
    α_s += s_α tanh(norm(H_s) W_α),  β_s += s_β tanh(norm(H_s) W_β)
  with W_α [D, R+1], W_β [D] and scalars s_α, s_β per site; without `tanh` the products themselves,
  which nothing bounds. `norm` has no gain or bias: a gain is part of W. Starts from R copies of the
  embedding, ends with the sum of the streams.

  State: (R + 1) D values and R (R + 1) coefficients per token.

  Parameters: L · sites R (R + 2), if dynamic
  L · sites (D (R + 2) + R (R + 2) + 2). At init sublayer i reads stream i mod R, streams are not
  mixed, β is 1, W is 0 and s_α = s_β = 0.01: all streams are the stream of `standard`. With R = 1
  the two gains of the stream (read, kept) and that of the output remain to be learned, and the
  authors found that to be worse than `standard`.

  The authors decay W, not α, β and s. They also multiply the initial standard deviation of the
  output projections by √R, against the sum over streams; with a scale-free final norm that is a
  choice of the branches' init, and is not made here.

  Args:
    num_streams: R, at least 1.
    dynamic: whether coefficients depend on the token.
    tanh: whether a tanh bounds what tokens add, as in the paper; several ports offer to drop it.
    norm: `layernorm` (the paper's) or `rmsnorm` (of widespread ports), for the dynamic part.
    eps: of that norm, > 0.

  Raises:
    ValueError: an option out of range.

  Source: Hyper-Connections, arXiv 2409.19606.
  """

  def __init__(
    self, *, dynamic: bool = True, tanh: bool = True, norm: str = "layernorm", eps: float = 1e-6,
    **options: Any,
  ):  # fmt: skip
    super().__init__(**options)
    check_flag("dynamic", dynamic)
    check_flag("tanh", tanh)
    check_choice("norm", norm, _NORMS)
    check_option("eps", eps, eps > 0, "eps > 0")
    self.dynamic, self.tanh, self.norm, self.eps = dynamic, tanh, norm, eps
    sites, streams = (self.num_layers, len(self.sites)), self.num_streams
    read = one_hot_reads(self.num_sublayers, streams).reshape(*sites, streams, 1)
    keep = jnp.broadcast_to(jnp.eye(streams), (*sites, streams, streams))
    self.alpha = nnx.Param(jnp.concatenate([read, keep], axis=-1))
    self.beta = nnx.Param(jnp.ones((*sites, streams)))
    self.per_layer = ("alpha", "beta")
    if dynamic:
      self.weight = nnx.Param(jnp.zeros((*sites, self.d_model, streams + 2)))  # W_α, W_β
      self.scale = nnx.Param(jnp.full((*sites, 2), 0.01))  # s_α, s_β
      self.per_layer += ("weight", "scale")
      self.decayed_parameters = ("weight",)

  def reading(self, layer: Layer, site: str) -> Reading:
    alpha, beta = self._row(self.alpha, layer, site), self._row(self.beta, layer, site)
    if not self.dynamic:
      return Reading(None, (alpha, beta), _static)
    weight, scale = self._row(self.weight, layer, site), self._row(self.scale, layer, site)
    if self.norm == "layernorm":  # one more column, whose product is the mean
      mean = jnp.full((self.d_model, 1), 1 / self.d_model, weight.dtype)
      weight = jnp.concatenate([weight, mean], axis=1)
    columns = jnp.sum(self._row(self.weight, layer, site), axis=0)
    coefficients = partial(_dynamic, self.norm == "layernorm", self.tanh, self.eps)
    return Reading(weight, (alpha, beta, scale, columns), coefficients)


def _static(
  products: Array | None, mean_squares: Array | None, parameters: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
  """Returns p, M and b: the first column of α, the transpose of the others, and β."""
  alpha, beta = parameters
  mix = jnp.stack([alpha[:, r] for r in range(1, alpha.shape[1])])
  return alpha[:, 0], mix, beta


def _dynamic(
  centred: bool,
  tanh: bool,
  eps: float,
  products: Array,
  mean_squares: Array,
  parameters: tuple[Array, Array, Array, Array],
) -> tuple[Array, Array, Array]:
  """Returns p, M and b of all tokens. A norm without gain scales rows, so it follows the product.

  Args:
    centred: whether the last product is the mean, which the norm takes away.
    tanh: whether the logits go through tanh.
    eps: added to the mean square in the norm.
    products: [R, K, ...] of streams with W_α and W_β, and the mean.
    mean_squares: [R, ...] of streams.
    parameters: α [R, R + 1], β [R], s_α and s_β [2], and the sum of each column of W.
  """
  alpha, beta, scale, columns = parameters
  if centred:
    mean = products[:, -1]
    products = products[:, :-1] - mean[:, None] * columns[None]
    mean_squares = mean_squares - mean * mean
  logits = products * jax.lax.rsqrt(mean_squares + eps)[:, None]
  moved = jnp.tanh(logits) if tanh else logits
  alpha = alpha + scale[:1, None] * moved[:, :-1]
  return _static(None, None, (alpha, beta + scale[1:] * moved[:, -1]))
