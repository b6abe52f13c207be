# options: alpha eps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..configuration import ResjaxConfig
from ..shared.stream import Stream


class Residual(Stream):
  """x ← γ ⊙ RMS(α x + f(x)), α being the number of all sites where it is 0; layer 0 has less."""

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    self.alpha = self.alpha or float(self.num_layers * self.num_sites)
    self.gain = nn.Parameter(torch.ones(self.num_layers, self.num_sites, self.width))

  def write(self, state: Tensor, layer: int, site: int, out: Tensor, normed: dict, tape: Any):
    total = (self.alpha if layer else 1) * state.float() + out.float()
    if layer or site:
      total = functional.rms_norm(total, (self.width,), self.gain[layer, site].float(), self.eps)
    return total.to(state.dtype)
