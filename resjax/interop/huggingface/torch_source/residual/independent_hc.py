# options: num_streams magnitude gate_eps read_site head eps
# free: init implementation
from torch import Tensor

from ..shared.dynamic_streams import DynamicStreams


class Residual(DynamicStreams):
  """M = I: streams meet in reads alone; b = c σ(z_b) + ε."""

  def strength(self, logits: Tensor) -> Tensor:
    return self.magnitude * logits.sigmoid() + self.gate_eps
