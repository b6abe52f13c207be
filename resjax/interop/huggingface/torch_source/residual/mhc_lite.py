# options: num_streams read_site head eps
# free: init implementation
import itertools
import math

import torch
from torch import Tensor

from ..shared.dynamic_streams import DynamicStreams


class Residual(DynamicStreams):
  """M = Σ_k softmax_k(z_M) P_k over all permutation matrices P_k, in the order of itertools."""

  def num_mix_logits(self) -> int:
    return math.factorial(self.num_streams)

  def mix(self, logits: Tensor) -> Tensor:
    count = self.num_streams
    rows = torch.eye(count, device=logits.device)
    chosen = [rows[s] for order in itertools.permutations(range(count)) for s in order]
    matrices = torch.stack(chosen).unflatten(0, (-1, count))
    return torch.einsum("btk,krs->btrs", logits.softmax(-1), matrices)
