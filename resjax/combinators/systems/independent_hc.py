"""Independent Hyper-Connections: residual streams that are never mixed."""

from typing import Any

from resjax.combinators.checks import check_option
from resjax.combinators.dynamic_streams import DynamicStreams, Gates


class IndependentHC(DynamicStreams):
  """x = Σ_s p_s H_s;  H_r ← H_r + b_r f(x), with R streams H_s that meet in reads alone.

  It is `mhc` with M = I: p = σ(z_pre) + ε, b = c σ(z_post) + ε, z = a ⊙ (RMS(vec H) φ) + bias for
  every token, with φ [R D, 2 R], bias [2 R] and one scalar a each for p and b. Streams start as
  copies of the embedding; the output is by default one more read with parameters of its own.

  State: (R + 1) D values and R (R + 1) coefficients per token.

  Parameters: L · sites (2 R (R D + 1) + 2), and R (R D + 1) + 1 for a
  learned head. Initial values are as in `mhc`: up to ε all streams are the stream of `standard`
  until the first update, if c = 2 and `init` is not `one_hot`. HY 4 starts φ at N(0, 0.02²) for b
  as well, which makes b differ from 1 at init.

  When to use it: as the cheapest system of several streams, or to see what the mixing of `mhc` is
  worth. No figures are published for HY 4. Qwen's report on Gated Residual (arXiv 2608.30320) finds
  that mixing adds little; setting the late mixers of a trained `mhc` to I cost 1.9 % of perplexity
  (arXiv 2609.05309, as quoted elsewhere).

  Args:
    num_streams: R, at least 1. With 1 the gain b of the output is all there is.
    magnitude: c, the largest b; > 0.
    gate_eps: ε, at least 0.
    init: as in `mhc`: `identity` (p = 1/R; HY 4's), `uniform`, `home_stream` or `one_hot`.
    read_site: as in `mhc`.
    head: as in `mhc`: `learned` (HY 4's), `sum`, `mean` or `previous`.
    eps: added to the mean square of the streams in their norm; > 0.

  Raises:
    ValueError: an option out of range.

  Source: HY 4 in transformers (hy_v4); the same idea as iHC in Chimera, arXiv 2607.28611.
  """

  def __init__(
    self, *, magnitude: float = 2.0, gate_eps: float = 1e-6, init: str = "identity",
    head: str = "learned", **options: Any,
  ):  # fmt: skip
    self.magnitude = check_option("magnitude", magnitude, magnitude > 0, "magnitude > 0")
    self.gate_eps = check_option("gate_eps", gate_eps, gate_eps >= 0, "gate_eps >= 0")
    super().__init__(init=init, head=head, **options)

  @property
  def gates(self) -> Gates:
    return Gates(self.num_streams, self.gate_eps, self.gate_eps, self.magnitude)
