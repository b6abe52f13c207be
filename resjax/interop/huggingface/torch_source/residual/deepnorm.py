# options: alpha eps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..configuration import ResjaxConfig
from ..shared.stream import Stream


class Residual(Stream):
  """x ← LN(α x + f(x)); an α of 0 stands for the fourth root of the number of all sites."""

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    sites = self.num_layers, self.num_sites
    self.alpha = self.alpha or (self.num_layers * self.num_sites) ** 0.25
    self.norm_scale = nn.Parameter(torch.ones(*sites, self.width))
    self.norm_bias = nn.Parameter(torch.zeros(*sites, self.width))

  def write(self, state: Tensor, layer: int, site: int, out: Tensor, normed: dict, tape: Any):
    gain, bias = (p[layer, site].float() for p in (self.norm_scale, self.norm_bias))
    total = self.alpha * state.float() + out.float()
    return functional.layer_norm(total, (self.width,), gain, bias, self.eps).to(state.dtype)
