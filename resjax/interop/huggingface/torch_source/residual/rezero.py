# options: granularity
# free: pre_norm
from typing import Any

import torch
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.stream import Stream


class Residual(Stream):
  """x ← x + α f(x), with a learned number α per layer or per site."""

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    per_site = (self.num_sites,) if self.granularity == "sublayer" else ()
    self.alpha = nn.Parameter(torch.zeros(self.num_layers, *per_site))

  def write(self, state: Tensor, layer: int, site: int, out: Tensor, normed: dict, tape: Any):
    alpha = self.alpha[layer, site] if self.granularity == "sublayer" else self.alpha[layer]
    return (alpha.float() * out.float() + state.float()).to(state.dtype)
