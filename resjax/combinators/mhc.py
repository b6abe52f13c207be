"""Manifold-constrained Hyper-Connections: streams are mixed by doubly stochastic matrices."""

import abc
import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.combinators.base import Layer, check_option
from resjax.combinators.numerics import project
from resjax.combinators.streams import ResidualStreams, one_hot_reads
from resjax.typing import Array, wide_dtype

_INITS = ("uniform", "identity", "one_hot")
_FAR = -8.0  # logit of what an identity-like mix leaves out


class _Constrained(ResidualStreams):
  """Streams with p = σ(z_pre), b = 2 σ(z_post) and a doubly stochastic M(z_res), see `MHC`."""

  per_layer = ("projection", "bias", "scale")
  decayed_parameters = ("projection",)

  def __init__(self, *, init: str = "uniform", eps: float = 1e-6, rngs: nnx.Rngs, **options: Any):
    super().__init__(**options)
    check_option("init", init, init in _INITS, ", ".join(_INITS))
    check_option("eps", eps, eps > 0, "eps > 0")
    self.eps = eps
    self.equals_standard_at_init = init != "one_hot"
    sites, streams = (self.num_layers, len(self.sites)), self.num_streams
    bias = self._initial_bias(init)
    shape = (*sites, streams, self.d_model, bias.shape[-1])
    if init == "one_hot":
      projection = jnp.zeros(shape)
    else:
      projection = jax.random.normal(rngs.params(), shape) / math.sqrt(streams * self.d_model)
      # Streams that are written alike stay equal until the reads have told them apart.
      projection = projection.at[..., streams : 2 * streams].set(0)
    self.projection = nnx.Param(projection, axes=("embed_param", None))
    self.bias = nnx.Param(bias.reshape(*sites, -1))
    self.scale = nnx.Param(jnp.full((*sites, 3), 0.01))

  @abc.abstractmethod
  def _identity_logits(self) -> np.ndarray:
    """Returns z_res of a matrix close to the identity, flat."""

  @abc.abstractmethod
  def _doubly_stochastic(self, logits: Array) -> Array:
    """Maps z_res [K', ...], whose first axis is flat, to M [R, R, ...]."""

  def _initial_bias(self, init: str) -> Array:
    """Returns [L · sites, K]."""
    sublayers, streams = self.num_sublayers, self.num_streams
    res = jnp.asarray(self._identity_logits())
    if init == "one_hot":
      pre = post = 2 * one_hot_reads(sublayers, streams) - 1
    else:
      # σ(-log(R - 1)) = 1 / R: the identity reads the mean, like the uniform mix.
      pre = jnp.full(streams, 0.0 if init == "uniform" else -math.log(max(streams - 1, 1)))
      post = jnp.zeros(streams)
      res = jnp.zeros_like(res) if init == "uniform" else res
    parts = [jnp.broadcast_to(part, (sublayers, part.shape[-1])) for part in (pre, post, res)]
    return jnp.concatenate(parts, axis=-1)

  def coefficients(self, streams: Array, layer: Layer, site: str) -> tuple[Array, Array, Array]:
    """See `ResidualStreams.coefficients`."""
    # The devices first gather φ, since with φ split over D they would exchange a product per token.
    projection = self._row(self.projection, layer, site)
    projection = self.layout.constrain(projection, *[None] * projection.ndim)
    bias, scale = self._row(self.bias, layer, site), self._row(self.scale, layer, site)
    count = self.num_streams
    sizes = np.array([count, count, len(bias) - 2 * count])
    scale = jnp.repeat(scale, sizes, total_repeat_length=len(bias))
    logits = scale * _normed_projection(self.eps, streams, projection) + bias
    pre, post, res = jnp.split(jnp.moveaxis(logits, -1, 0), [count, 2 * count])
    mix = self._doubly_stochastic(res)
    # The first site mixes copies, so its gradient would be rounding errors, which Adam scales up.
    first = (layer == 0) & (site == self.sites[0])
    eye = jnp.eye(count, dtype=mix.dtype).reshape(count, count, *(1,) * (mix.ndim - 2))
    return jax.nn.sigmoid(pre), jnp.where(first, eye, mix), 2 * jax.nn.sigmoid(post)


class MHC(_Constrained):
  """x = Σ_s p_s H_s;  H_r ← Σ_s M_rs H_s + b_r f(x), M doubly stochastic, with R streams H_s.

  p = σ(z_pre), b = 2 σ(z_post), M = Sinkhorn(exp(z_res)): columns, then rows are divided by their
  sums, `sinkhorn_iterations` times, in the logarithm. z = a ⊙ (RMS(vec H) φ) + bias, for every
  token: φ [R D, K], bias [K], one scalar a each for the K = R + R + R² logits of p, b and M. A
  product of such M over the depth has rows and columns that sum to 1, so streams cannot explode.
  Rows are exact; columns as far as Sinkhorn has come, far off only if logits differ by many units.

  Starts from R copies of the embedding, ends with the sum of the streams. The first site mixes
  copies, so its logits of M have no effect and get no gradient; those of the last site have none
  but for what Sinkhorn leaves, as its columns are summed.

  State: R D values per token. Parameters: L · sites ((R D + 1) (R² + 2 R) + 3). At init a = 0.01
  (the one value that the paper gives) and, by `init`,
    uniform   bias 0: p = 1/2, b = 1, M = 1/R.
    identity  p = 1/R, b = 1, M about I (its logits 0 on the diagonal, -8 off it).
    one_hot   M about I; p and b with bias 1 at stream i mod R for sublayer i, -1 at the others;
              φ = 0. The mHC-lite authors train both systems like this. Not `standard`.
  In the first two φ is normal with variance 1 / (R D) but 0 for b, so that all streams are the
  stream of `standard` until the first update; with φ = 0 they would stay equal for ever. They
  part slowly: at first their reads differ by a φ alone.

  DeepSeek's released code differs from the paper: it begins with a softmax over rows and a small
  constant, ends with columns, uses the transpose of M, adds a constant to p, and reads the output
  by learned weights instead of the sum. That variant is not offered.

  Args:
    num_streams: R, at least 1. With 1, M is 1 and the gain b of the output is all there is.
    sinkhorn_iterations: at least 1.
    init: `uniform`, `identity` or `one_hot`.
    eps: added to the mean square of the streams in their norm; > 0.

  Raises:
    ValueError: an option out of range.

  Source: mHC, arXiv 2512.24880.
  """

  def __init__(self, *, sinkhorn_iterations: int = 20, **options: Any):
    super().__init__(**options)
    in_range = sinkhorn_iterations >= 1
    check_option("sinkhorn_iterations", sinkhorn_iterations, in_range, "sinkhorn_iterations >= 1")
    self.sinkhorn_iterations = sinkhorn_iterations

  def _identity_logits(self) -> np.ndarray:
    return np.where(np.eye(self.num_streams) == 1, 0.0, _FAR).reshape(-1)

  def _doubly_stochastic(self, logits: Array) -> Array:
    square = logits.reshape(self.num_streams, self.num_streams, *logits.shape[1:])
    return _sinkhorn(self.sinkhorn_iterations, square)


class MHCLite(_Constrained):
  """`mhc` with M = Σ_k softmax_k(z_res) P_k, over all R! permutation matrices P_k.

  Every doubly stochastic matrix is such a sum, and every such sum is one exactly, without
  iterations. There are K = R + R + R! logits; all else, initial values included, is as in `mhc`:
  for `identity` and `one_hot` the logit of the identity permutation is 0, of the others -8. The
  logits of M of the first and the last site have no effect.

  State: R D values per token. Parameters: L · sites ((R D + 1) (R! + 2 R) + 3).

  Args:
    num_streams: R, 1..4: with 5, each site would project 5 D values to 120 permutations.
    init: `uniform`, `identity` (both are `standard` at init), or `one_hot`, which is the authors'.
    eps: added to the mean square of the streams in their norm; > 0.

  Raises:
    ValueError: an option out of range.

  Source: mHC-lite, arXiv 2601.05732.
  """

  def __init__(self, *, num_streams: int = 4, **options: Any):
    allowed = "1..4 (R! permutations)"
    check_option("num_streams", num_streams, 1 <= num_streams <= 4, allowed)
    super().__init__(num_streams=num_streams, **options)

  def _identity_logits(self) -> np.ndarray:
    return np.where(np.arange(math.factorial(self.num_streams)) == 0, 0.0, _FAR)

  def _doubly_stochastic(self, logits: Array) -> Array:
    orders = list(itertools.permutations(range(self.num_streams)))  # the identity is the first
    permutations = jnp.eye(self.num_streams, dtype=logits.dtype)[np.array(orders)]
    shares = jax.nn.softmax(logits, axis=0)
    # The default on TPUs would round the shares to bfloat16, and they would not sum to 1.
    return jnp.tensordot(permutations, shares, (0, 0), precision=jax.lax.Precision.HIGHEST)


@partial(jax.checkpoint, prevent_cse=False, static_argnums=0)
def _normed_projection(eps: float, streams: Array, weight: Array) -> Array:
  """Returns RMS(vec H) φ [..., K]. The norm is a scalar per token, so it follows the product."""
  product = jnp.sum(project("r...d,rdk->r...k", streams, weight), axis=0)
  wide = streams.astype(wide_dtype(streams))
  mean_square = jnp.mean(wide * wide, axis=(0, -1))
  return product * jax.lax.rsqrt(mean_square + eps)[..., None]


@partial(jax.checkpoint, prevent_cse=False, static_argnums=0)
def _sinkhorn(iterations: int, logits: Array) -> Array:
  """Sinkhorn(exp(logits)) of [R, R, ...]; in logarithms nothing overflows or vanishes."""
  for _ in range(iterations):
    logits -= jax.nn.logsumexp(logits, axis=0, keepdims=True)  # columns
    logits -= jax.nn.logsumexp(logits, axis=1, keepdims=True)  # rows
  return jnp.exp(logits)
