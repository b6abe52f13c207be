# options: num_streams sinkhorn_iterations gate_eps constraint read_site head eps
# free: init implementation
from torch import Tensor

from ..shared.dynamic_streams import DynamicStreams


class Residual(DynamicStreams):
  """M = Sinkhorn(exp(z_M)): columns, then rows are divided by their sums, several times.

  With ε every element of the first division by columns, and every sum after it, is ε larger. Where
  only rows or columns sum to 1, M is a softmax over them.
  """

  def num_mix_logits(self) -> int:
    return self.num_streams**2

  def mix(self, logits: Tensor) -> Tensor:
    square = logits.unflatten(-1, (self.num_streams, -1))
    if self.constraint != "both":
      return square.softmax(-1 if self.constraint == "rows" else -2)
    eps, by_columns = self.gate_eps, square.log_softmax(-2)
    if eps:
      matrix = by_columns.exp() + eps
      matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
    else:  # in the logarithm no sum is 0
      matrix = by_columns.softmax(-1)
    for axis in (-2, -1) * (self.sinkhorn_iterations - 1):
      sums = matrix.sum(axis, keepdim=True)
      matrix = matrix / (sums + eps if eps else sums)
    return matrix
