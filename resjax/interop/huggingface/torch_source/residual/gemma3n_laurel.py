# options: rank eps
import math
from typing import Any

import torch
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.low_rank import low_rank
from ..shared.stream import Stream


class Residual(Stream):
  """x ← (x + f(x) + n + γ ⊙ RMS(n A B)) / √2 at the attention, with its normalised input n.

  Other sites: x ← x + f(x). A rank of 0 stands for D / 32, and at least 8.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    depth, width = self.num_layers, self.width
    rank = self.rank or min(width, max(8, width // 32))
    self.site = config.sites.index("attention") if "attention" in config.sites else 0
    self.down = nn.Parameter(torch.zeros(depth, width, rank))
    self.up = nn.Parameter(torch.zeros(depth, rank, width))
    self.scale = nn.Parameter(torch.zeros(depth, width))

  def write(self, state: Tensor, layer: int, site: int, out: Tensor, normed: dict, tape: Any):
    if site != self.site:
      return state + out
    mapped = low_rank(normed["x"], self.down[layer], self.up[layer])
    mapped = mapped * torch.rsqrt(mapped.pow(2).mean(-1, keepdim=True) + self.eps)
    total = state.float() + out.float() + normed["x"].float()
    total = total + self.scale[layer].float() * mapped
    return (total * math.sqrt(0.5)).to(state.dtype)
