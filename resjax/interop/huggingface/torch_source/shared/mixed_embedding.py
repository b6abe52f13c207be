import torch
from torch import Tensor, nn

from .entered import EnteredStream


class MixedEmbedding(EnteredStream):
  """Before a layer, x ← λ x + μ x0 with the embedding x0, and learned λ and μ per layer."""

  def add_scales(self) -> None:
    self.stream_scale = nn.Parameter(torch.ones(self.num_layers))
    self.embedding_scale = nn.Parameter(torch.zeros(self.num_layers))

  def mixed(self, x: Tensor, embedding: Tensor, layer: int) -> Tensor:
    stream, share = self.stream_scale[layer].float(), self.embedding_scale[layer].float()
    return (stream * x.float() + share * embedding.float()).to(x.dtype)
