# options: version last
from typing import Any

import torch
from torch import Tensor, nn

from ..configuration import ResjaxConfig
from ..shared.layer_mixes import LayerMixes

VIEWS = ("q", "k", "v", "x")


class Residual(LayerMixes):
  """A layer reads four mixes Σ_j b_j ⊙ g_j of the embedding g_0 and of what layers have added.

  b_j is a number (version 1) or [D] (version 2), to which every token adds relu(w · g_j) in version
  3. With `last` k the outputs of all layers but the last k are one source, their sum.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    layers, width = self.num_layers, () if self.version == 1 else (self.width,)
    size = sum(self.num_sources(layer) for layer in range(layers))
    self.bias = nn.Parameter(torch.ones(size, len(VIEWS), *width))  # b, layer by layer
    self.final_bias = nn.Parameter(torch.ones(self.num_sources(layers), *width))
    if self.version == 3:
      self.query = nn.Parameter(torch.zeros(layers, len(VIEWS), self.width))
      self.final_query = nn.Parameter(torch.zeros(self.width))

  def num_sources(self, layer: int) -> int:
    """Returns how many sources a layer reads."""
    return min(layer + 1, self.last + 2) if self.last else layer + 1

  def mix(self, sources: list[Tensor], bias: Tensor, query: Tensor | None) -> Tensor:
    wide = torch.stack(sources).float()
    weights = bias.float().reshape(len(sources), 1, 1, -1)
    if query is not None:
      weights = weights + (wide * query.float()).sum(-1, keepdim=True).relu()
    return (weights * wide).sum(0).to(sources[0].dtype)

  def mixes(self, sources: list[Tensor], stream: Tensor, layer: int) -> dict[str, Tensor]:
    start = sum(self.num_sources(earlier) for earlier in range(layer))
    bias = self.bias[start : start + len(sources)]
    queries = self.query[layer] if self.version == 3 else [None] * len(VIEWS)
    return {view: self.mix(sources, bias[:, i], queries[i]) for i, view in enumerate(VIEWS)}

  def with_layer(self, sources: list, stream: Tensor, added: Tensor, layer: int) -> list[Tensor]:
    if self.last and len(sources) == self.last + 2:
      sources = [sources[0], sources[1] + sources[2], *sources[3:]]
    return [*sources, added]

  def final(self, state: Any) -> Tensor:
    return self.mix(state[0], self.final_bias, self.final_query if self.version == 3 else None)
