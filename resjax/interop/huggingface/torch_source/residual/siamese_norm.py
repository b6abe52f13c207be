# options: eps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import Cache

from ..configuration import ResjaxConfig
from ..shared.base import ResidualBase


class Residual(ResidualBase):
  """Two streams: x, which every site normalises, and y, which none does; both get f(x̂ + N(y))."""

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    sites = self.num_layers, self.num_sites
    self.post_gain = nn.Parameter(torch.ones(*sites, self.width))
    self.pre_gain = nn.Parameter(torch.ones(*sites, self.width))
    self.final_post_gain = nn.Parameter(torch.ones(self.width))
    self.final_pre_gain = nn.Parameter(torch.ones(self.width))

  def normed(self, x: Tensor, gain: Tensor) -> Tensor:
    return functional.rms_norm(x.float(), (self.width,), gain.float(), self.eps).to(x.dtype)

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> Any:
    return x, x

  def read(self, state: Any, layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    x, y = state
    x = self.normed(x, self.post_gain[layer, site])
    return {"x": x + self.normed(y, self.pre_gain[layer, site])}, x

  def write(self, state: Any, layer: int, site: int, out: Tensor, normed: dict, tape: Any):
    share = (self.num_sites * (layer + 1)) ** -0.5
    return (tape.float() + share * out.float()).to(out.dtype), state[1] + out

  def final(self, state: Any) -> Tensor:
    x, y = state
    return self.normed(x, self.final_post_gain) + self.normed(y, self.final_pre_gain)
