"""Manifold-constrained Hyper-Connections: streams are mixed by doubly stochastic matrices."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from resjax.base import Array
from resjax.combinators.checks import check_choice, check_option
from resjax.combinators.dynamic_streams import DynamicStreams, Gates
from resjax.kernels.streams import sinkhorn

_SUMMED = {"rows": 1, "columns": 0}  # the axis of M over which the one sum goes
_CONSTRAINTS = ("both", *_SUMMED)


@dataclasses.dataclass(frozen=True)
class SinkhornGates(Gates):
  """M = Sinkhorn(exp(z_res)) or a softmax, z_res [R R] in the order of M's rows, see `MHC`."""

  iterations: int = 20
  constraint: str = "both"

  def mix(self, logits: Float[Array, "M ..."]) -> Float[Array, "R R ..."]:
    square = logits.reshape(self.num_streams, self.num_streams, *logits.shape[1:])
    if self.constraint in _SUMMED:
      return jax.nn.softmax(square, axis=_SUMMED[self.constraint])
    if self.read_eps:
      return _sinkhorn_with_eps(self.iterations, self.read_eps, square)
    return sinkhorn(self.iterations, square)

  @property
  def identity(self) -> np.ndarray:
    return np.eye(self.num_streams, dtype=bool).reshape(-1)

  @property
  def keeps_copies(self) -> bool:
    return self.constraint != "columns"


class MHC(DynamicStreams):
  """x = Σ_s p_s H_s;  H_r ← Σ_s M_rs H_s + b_r f(x), M doubly stochastic, with R streams H_s.

  p = σ(z_pre) + ε, b = 2 σ(z_post), M = Sinkhorn(exp(z_res)): columns, then rows are divided by
  their sums, `sinkhorn_iterations` times. z = a ⊙ (RMS(vec H) φ) + bias, for every token:
  φ [R D, K], bias [K], one scalar a each for the K = R + R + R² logits of p, b and M. A product of
  such M over the depth has rows and columns that sum to 1, so streams cannot explode. Rows are
  exact; columns as far as Sinkhorn has come, far off only if logits differ by many units.

  With ε = 0, as in the paper, Sinkhorn runs in the logarithm. Otherwise, as in released models, it
  begins with a softmax over each column, adds ε to every element, and from then on to every sum
  by which it divides. DeepSeek-V4 has ε = 1e-6 and the head `learned`, GLM-5.3 the same ε and
  `mean`. Both compute C, the transpose of M, end with its columns, and mix by its transpose. That
  is this M: their logits of C [s, r] are the transpose of the logits of M [r, s], and nothing else
  differs.

  With the constraint `rows` or `columns` only these sum to 1: M is a softmax, without Sinkhorn and
  without ε, and products of any number of such M have a norm of at most √R. With rows every stream
  stays a mean of streams; with columns their sum is kept, and mixing tells copies apart.

  With read_site `previous` a site reads its streams by the p that the site before it computed from
  its own; the first one reads stream 0. So what a site reads is known before its streams are
  written, and needs no second look at them. DeepSeek-V4.1 does so, with ε and the head `previous`.
  The kernels cannot: plain JAX runs.

  Starts from R copies of the embedding. The first site mixes copies, so its logits of M have no
  effect and get no gradient; with a head that sums or averages, the logits of the last site have
  none but for what Sinkhorn leaves, as its columns are summed.

  State: (R + 1) D values and R (R + 1) coefficients per token.

  Parameters: L · sites ((R D + 1) (R² + 2 R) + 3), and R (R D + 1) + 1
  for a learned head. At init a = 0.01 (the paper's appendix A.1) and, by `init`,
    uniform      bias 0: p = 1/2, b = 1, M = 1/R.
    identity     p = 1/R, b = 1, M about I (its logits 0 on the diagonal, -8 off it).
    home_stream  φ = 0, b = 1; p with bias 3 at stream i mod R for sublayer i, -3 at the others; M
                 about I (its logits 3 on the diagonal, -3 off it). PaddleFleet's pull request 1849
                 says that an appendix A.6 of the paper has these numbers; the text of the paper
                 that we have read ends with A.1 and says nothing about bias and φ.
    one_hot      M as for `identity`; p and b with bias 1 at stream i mod R for sublayer i, -1 at
                 the others; φ = 0. The mHC-lite authors train both systems like this. Not
                 `standard`.
  In the first two φ is normal with variance 1 / (R D) but 0 for b. In all but the last all streams
  are the stream of `standard` until the first update, up to ε per site; with φ = 0 and equal reads
  they would stay equal for ever. They part slowly where at first their reads differ by a φ alone. A
  learned head begins near the mean. With constraint `columns` φ is 0 for M, too: else its rows
  would not sum to 1.

  When to use it: where the state of R streams and its traffic can be paid for. The paper gains
  0.021 in loss at 27B for 6.7 % more time; marin (#9290) gains 0.005 at width 768, which is less
  than its throughput loses. From 20 layers on `hyper_connections` is ahead in DepthBench at 400M.

  Args:
    num_streams: R, at least 1. With 1, M is 1 and the gain b of the output is all there is.
    sinkhorn_iterations: at least 1; for the constraint `both` alone.
    constraint: which sums of M are 1: `both`, `rows` or `columns`.
    read_site: whose p a site reads by: its `own`, or that of the `previous` one.
    gate_eps: ε, at least 0.
    init: `uniform`, `identity`, `home_stream` or `one_hot`.
    head: what the streams H become after the last layer. `sum` (the paper's), `mean`, or
      `learned`: Σ_s (σ(a' (RMS(vec H) φ')_s + bias'_s) + ε) H_s, φ' [R D, R], bias' [R], a' [1];
      with read_site `previous` also that: Σ_s p_s H_s with p of the last site.
    eps: added to the mean square of the streams in their norm; > 0.

  Raises:
    ValueError: an option out of range.

  Source: mHC, arXiv 2512.24880; ε and heads: transformers, deepseek_v4 and glm5_next; read_site:
  deepseek_v41 there, and arXiv 2609.19969, section 2.4.1, second-hand; constraint:
  OpenReview 1BC0eYN2uS, second-hand.
  """

  def __init__(
    self, *, sinkhorn_iterations: int = 20, gate_eps: float = 0.0, constraint: str = "both",
    **options: Any,
  ):  # fmt: skip
    in_range = sinkhorn_iterations >= 1
    check_option("sinkhorn_iterations", sinkhorn_iterations, in_range, "sinkhorn_iterations >= 1")
    self.gate_eps = check_option("gate_eps", gate_eps, gate_eps >= 0, "gate_eps >= 0")
    self.constraint = check_choice("constraint", constraint, _CONSTRAINTS)
    self.sinkhorn_iterations = sinkhorn_iterations
    super().__init__(**options)

  @property
  def gates(self) -> Gates:
    return SinkhornGates(
      self.num_streams, self.gate_eps, iterations=self.sinkhorn_iterations,
      constraint=self.constraint,
    )  # fmt: skip


def _sinkhorn_with_eps(iterations: int, eps: float, logits: Array) -> Array:
  """The same of softmax(logits) + eps, with eps in each division."""
  mix = jax.nn.softmax(logits, axis=0) + eps
  for axis in (1, *(0, 1) * (iterations - 1)):
    mix /= jnp.sum(mix, axis=axis, keepdims=True) + eps
  return mix
