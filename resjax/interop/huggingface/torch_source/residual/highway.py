# options: granularity
# free: bias_init
from typing import Any

import torch
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.stream import Stream


class Residual(Stream):
  """x ← (1 − g) ⊙ x + g ⊙ f(x), g = σ(x W + b), one number per token or per channel."""

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    sites, gates = (self.num_layers, self.num_sites), 1
    if self.granularity == "channel":
      gates = self.width
    self.weight = nn.Parameter(torch.zeros(*sites, self.width, gates))
    self.bias = nn.Parameter(torch.zeros(*sites, gates))

  def write(self, state: Tensor, layer: int, site: int, out: Tensor, normed: dict, tape: Any):
    wide = state.float()
    gate = (wide @ self.weight[layer, site].float() + self.bias[layer, site].float()).sigmoid()
    return (wide + gate * (out.float() - wide)).to(state.dtype)
