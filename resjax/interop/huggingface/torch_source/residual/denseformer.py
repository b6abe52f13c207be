# options: dilation period
from typing import Any

import torch
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.layer_mixes import LayerMixes


class Residual(LayerMixes):
  """Y_i = Σ_j α_ij X_j over the embedding X_0 and the streams X_1 .. X_i at the ends of layers.

  Layer i begins at Y_i, the output is Y_L. Of the sources those take part that are a multiple of
  the dilation behind the newest one; but where i is no multiple of the period, Y_i is X_i.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    self.starts, size = [], 0
    for i in range(self.num_layers + 1):
      self.starts.append(size)
      size += len(self.columns(i))
    self.weight = nn.Parameter(torch.zeros(size))  # α, average by average

  def columns(self, i: int) -> range:
    """Returns the sources of which Y_i is an average; none where it is X_i."""
    return range(0) if i == 0 or i % self.period else range(i % self.dilation, i + 1, self.dilation)

  def average(self, sources: list[Tensor], i: int) -> Tensor:
    columns, start = self.columns(i), self.starts[i]
    if not columns:
      return sources[-1]
    chosen = torch.stack([sources[j] for j in columns])
    weights = self.weight[start : start + len(columns)].float()
    return (weights.reshape(-1, 1, 1, 1) * chosen.float()).sum(0).to(chosen.dtype)

  def mixes(self, sources: list[Tensor], stream: Tensor, layer: int) -> dict[str, Tensor]:
    return {"x": self.average(sources, layer)}

  def final(self, state: Any) -> Tensor:
    return self.average(state[0], self.num_layers)
