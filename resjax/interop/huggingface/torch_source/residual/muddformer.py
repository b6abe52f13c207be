# options: row_sizes pre_post_norm eps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import Cache

from ..configuration import ResjaxConfig
from ..shared.layer_mixes import LayerMixes

VIEWS = ("q", "k", "v", "x")


def hidden_size(num_sources: int) -> int:
  """Returns the next multiple of 64 above 4 per source."""
  return (4 * num_sources // 64 + 1) * 64


class Residual(LayerMixes):
  """Layers after the first read four mixes Σ_j (W₂ gelu(W₁ RMS(X_i)) + b)_j X_j, token by token.

  X_0 is the embedding, X_i the stream at the end of layer i, from which the weights come. W₂ and b
  are stacked over the layers and their sources, and W₁ over layers, but for `faithful` row sizes,
  where they are lists. With pre_post_norm the sources are g_j ⊙ RMS(X_j), and a mix is added to
  X_i; that of the view x, and the last one, as s ⊙ RMS(mix).
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    layers, width, views = self.num_layers, self.width, len(VIEWS)
    counts, size = range(2, layers + 1), hidden_size(layers + 1)
    self.bias = nn.Parameter(torch.zeros(sum(counts), views))
    if self.row_sizes == "faithful":
      self.hidden = nn.ParameterList([torch.zeros(width, hidden_size(n)) for n in counts])
      self.output = nn.ParameterList([torch.zeros(n, hidden_size(n), views) for n in counts])
    else:
      self.hidden = nn.Parameter(torch.zeros(layers, width, hidden_size(layers)))
      self.output = nn.Parameter(torch.zeros(sum(counts), hidden_size(layers), views))
    self.final_hidden = nn.Parameter(torch.zeros(width, size))
    self.final_output = nn.Parameter(torch.zeros(layers + 1, size, 1))
    self.final_bias = nn.Parameter(torch.zeros(layers + 1, 1))
    if self.pre_post_norm:
      self.embedding_scale = nn.Parameter(torch.ones(width))
      self.source_scale = nn.Parameter(torch.ones(layers, width))
      self.mix_scale = nn.Parameter(torch.ones(layers, width))
      self.final_mix_scale = nn.Parameter(torch.ones(width))

  def normed(self, x: Tensor) -> Tensor:
    return functional.rms_norm(x.float(), (self.width,), eps=self.eps)

  def scaled(self, x: Tensor, scale: Tensor) -> Tensor:
    return (self.normed(x) * scale.float()).to(x.dtype)

  def mix(
    self, sources: list, stream: Tensor, hidden: Tensor, output: Tensor, bias: Tensor
  ) -> list[Tensor]:
    """Returns a mix [B, T, D] for each of the last axis of W₂ [n, H, C] and b [n, C]."""
    inner = functional.gelu(self.normed(stream) @ hidden.float())
    weights = torch.einsum("bth,nhc->cnbt", inner, output.float())
    weights = weights + bias.float().T[..., None, None]
    wide = torch.stack(sources).float()
    return [(of_view[..., None] * wide).sum(0).to(stream.dtype) for of_view in weights]

  def weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns W₁, W₂ and b of a layer after the first."""
    rows = slice(layer * (layer + 1) // 2 - 1, (layer + 1) * (layer + 2) // 2 - 1)
    if self.row_sizes == "faithful":
      return self.hidden[layer - 1], self.output[layer - 1], self.bias[rows]
    return self.hidden[layer], self.output[rows], self.bias[rows]

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> Any:
    return [self.scaled(x, self.embedding_scale) if self.pre_post_norm else x], x, None

  def mixes(self, sources: list[Tensor], stream: Tensor, layer: int) -> dict[str, Tensor]:
    if layer == 0:
      return dict.fromkeys(VIEWS, stream)
    found = self.mix(sources, stream, *self.weights(layer))
    if self.pre_post_norm:
      found[-1] = self.scaled(found[-1], self.mix_scale[layer])
      found = [stream + mix for mix in found]
    return dict(zip(VIEWS, found, strict=True))

  def with_layer(self, sources: list, stream: Tensor, added: Tensor, layer: int) -> list[Tensor]:
    source = self.scaled(stream, self.source_scale[layer]) if self.pre_post_norm else stream
    return [*sources, source]

  def final(self, state: Any) -> Tensor:
    sources, stream, _ = state
    weights = self.final_hidden, self.final_output, self.final_bias
    (mix,) = self.mix(sources, stream, *weights)
    return stream + self.scaled(mix, self.final_mix_scale) if self.pre_post_norm else mix
