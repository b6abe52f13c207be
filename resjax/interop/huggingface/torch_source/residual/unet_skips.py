# options: mix_embedding
import torch
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.mixed_embedding import MixedEmbedding


class Residual(MixedEmbedding):
  """Before layer l of the last ⌊L/2⌋, x ← x + w_l x_(L−1−l), with the stream after layer L−1−l.

  Before that x ← λ x + μ x0 in every layer, where residual_mix_embedding says so.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    self.num_skips = self.num_layers // 2
    self.weight = nn.Parameter(torch.zeros(self.num_skips))
    if self.mix_embedding:
      self.add_scales()

  def enter(self, x: Tensor, sources: list[Tensor], layer: int) -> Tensor:
    begun = self.mixed(x, sources[0], layer) if self.mix_embedding else x
    skip = layer - (self.num_layers - self.num_skips)
    if skip < 0:
      return begun
    kept = sources[self.num_layers - layer]
    return (begun.float() + self.weight[skip].float() * kept.float()).to(x.dtype)

  def keeps(self, layer: int) -> bool:
    return layer < self.num_skips
