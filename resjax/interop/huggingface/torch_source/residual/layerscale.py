# free: init_value
from typing import Any

import torch
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.stream import Stream


class Residual(Stream):
  """x ← x + λ ⊙ f(x), with a learned λ [D] per site."""

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    self.scale = nn.Parameter(torch.ones(self.num_layers, self.num_sites, self.width))

  def write(self, state: Tensor, layer: int, site: int, out: Tensor, normed: dict, tape: Any):
    return (self.scale[layer, site].float() * out.float() + state.float()).to(state.dtype)
