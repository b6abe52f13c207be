"""mHC-lite: streams are mixed by weighted sums of permutation matrices."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from resjax.base import Array
from resjax.base.sharding import reshape_front
from resjax.combinators.checks import check_option
from resjax.combinators.dynamic_streams import DynamicStreams, Gates


@dataclasses.dataclass(frozen=True)
class PermutationGates(Gates):
  """M = Σ_k softmax_k(z_res) P_k over all permutation matrices [R, R], of which P_0 is I."""

  def mix(self, logits: Float[Array, "M ..."]) -> Float[Array, "R R ..."]:
    shares = jax.nn.softmax(logits, axis=0)
    return _permuted(self.num_streams, shares[None])[0]

  @property
  def identity(self) -> np.ndarray:
    return np.arange(math.factorial(self.num_streams)) == 0


class MHCLite(DynamicStreams):
  """`mhc` with M = Σ_k softmax_k(z_res) P_k, over all R! permutation matrices P_k.

  Every doubly stochastic matrix is such a sum, and every such sum is one exactly, without
  iterations. There are K = R + R + R! logits; all else, initial values included, is as in `mhc`
  with ε = 0, where what is said of the diagonal of M holds for the identity permutation. The
  logits of M of the first site have no effect, nor have the logits of the last site before a head
  that sums or averages.

  State: (R + 1) D values and R (R + 1) coefficients per token.

  Parameters: L · sites ((R D + 1) (R! + 2 R) + 3), and R (R D + 1) + 1
  for a learned head.

  Args:
    num_streams: R, 1..4: with 5, each site would project 5 D values to 120 permutations.
    init: `uniform`, `identity`, `home_stream` (all are `standard` at init), or `one_hot`, which is
      the authors'.
    read_site, head: as in `mhc`.
    eps: added to the mean square of the streams in their norm; > 0.

  Raises:
    ValueError: an option out of range.

  Source: mHC-lite, arXiv 2601.05732.
  """

  def __init__(self, *, num_streams: int = 4, **options: Any):
    allowed = "1..4 (R! permutations)"
    check_option("num_streams", num_streams, 1 <= num_streams <= 4, allowed)
    super().__init__(num_streams=num_streams, **options)

  @property
  def gates(self) -> Gates:
    return PermutationGates(self.num_streams)


def _permuted(size: int, shares: Array) -> Array:
  """Returns Σ_k shares_k P_k [G, n, n, ...] over the permutations P_k of n columns, in their order.

  The first (n - 1)! of them begin with column 0 and go on with the permutations of the others, and
  so on: the first row is a sum over each such part, and what is below it follows in the same way.

  Args:
    size: n.
    shares: [G, n!, ...], of G sums at once.
  """
  groups = len(shares)
  if size == 1:
    return shares[:, None]
  of_part = math.factorial(size - 1)
  parts = reshape_front(shares, 2, groups, size, of_part)
  below = _permuted(size - 1, reshape_front(shares, 2, groups * size, of_part))
  below = reshape_front(below, 3, groups, size, size - 1, size - 1)
  zeros = jnp.zeros_like(below[:, 0, :, :1])
  rows: Array | float = 0.0
  for first in range(size):
    others = below[:, first]
    columns = [others[:, :, :first], zeros, others[:, :, first:]]
    # A kernel cannot hold arrays without elements.
    rows += jnp.concatenate([part for part in columns if part.size], axis=2)
  return jnp.concatenate([jnp.sum(parts, axis=2)[:, None], rows], axis=1)
