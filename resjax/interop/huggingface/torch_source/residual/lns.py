# options: eps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..configuration import ResjaxConfig
from ..shared.stream import Stream


class Residual(Stream):
  """x ← x + f(γ ⊙ RMS(x) / √ℓ), where ℓ counts layers from 1."""

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    self.gain = nn.Parameter(torch.ones(self.num_layers, self.num_sites, self.width))

  def read(self, state: Tensor, layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    gain = self.gain[layer, site].float() / (layer + 1) ** 0.5
    normed = functional.rms_norm(state.float(), (self.width,), eps=self.eps)
    return {"x": (gain * normed).to(state.dtype)}, None

  def write(self, state: Tensor, layer: int, site: int, out: Tensor, normed: dict, tape: Any):
    return state + out
