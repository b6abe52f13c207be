# options: variant weighted_output eps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import Cache

from ..configuration import ResjaxConfig
from ..shared.base import ResidualBase


class Residual(ResidualBase):
  """Layer i reads x̂ = Σ_{j≤i} softmax_j(a_i) y_j and leaves y_{i+1}; y_0 is the embedding.

  A site after the first reads x̂ plus the outputs before it in its layer, or without x̂ in the
  variant base. y_{i+1} is the sum of the outputs, standardised in the variant normalized. The
  output is y_L, or one more such mix where residual_weighted_output says so.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    self.logits = nn.Parameter(torch.zeros(self.start(self.num_layers + self.weighted_output)))

  def start(self, row: int) -> int:
    """Returns where the logits of a row start: row i has i + 1, and row 0 needs none."""
    return (row - 1) * (row + 2) // 2 if row else 0

  def mix(self, sources: list[Tensor], row: int) -> Tensor:
    if row == 0:
      return sources[0]
    shares = self.logits[self.start(row) : self.start(row + 1)].float().softmax(0)
    mixed = sum(share * x.float() for share, x in zip(shares, sources, strict=True))
    return mixed.to(sources[0].dtype)

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> Any:
    return [x], x, x

  def read(self, state: Any, layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    if site:
      return {"x": state[1]}, state[1]
    x = self.mix(state[0], layer)
    return {"x": x}, None if self.variant == "base" else x

  def write(self, state: Any, layer: int, site: int, out: Tensor, normed: dict, tape: Any) -> Any:
    """Returns the sources y, the stream that later sites read, and the sum of outputs."""
    sources, stream = state[0], out if tape is None else tape + out
    total = state[2] + out if site else out
    if site < self.num_sites - 1:
      return sources, stream, total
    if self.variant == "normalized":
      total = functional.layer_norm(total.float(), (self.width,), eps=self.eps).to(out.dtype)
    return [*sources, total], stream, total

  def final(self, state: Any) -> Tensor:
    return self.mix(state[0], self.num_layers) if self.weighted_output else state[2]
