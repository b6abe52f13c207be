# options: backout
# free: init
from typing import Any

import torch
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.mixed_embedding import MixedEmbedding


class Residual(MixedEmbedding):
  """Before layers, x ← λ x + μ x0; the output is x, or x − b x_mid with x_mid of mid-depth."""

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    self.add_scales()
    if self.backout:
      self.backout_scale = nn.Parameter(torch.zeros(()))

  def enter(self, x: Tensor, sources: list[Tensor], layer: int) -> Tensor:
    return self.mixed(x, sources[0], layer)

  def keeps(self, layer: int) -> bool:
    return self.backout and layer == self.num_layers // 2

  def final(self, state: Any) -> Tensor:
    x, sources = state
    if not self.backout:
      return x
    return (x.float() - self.backout_scale.float() * sources[1].float()).to(x.dtype)
