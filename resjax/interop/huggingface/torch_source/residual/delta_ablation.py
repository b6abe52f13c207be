# options: mode output_gate null_source views num_heads eps
# free: implementation
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ..configuration import ResjaxConfig
from ..shared.delta_reads import DeltaReads


class Residual(DeltaReads):
  """Sites read outputs of earlier ones (delta), or the streams after them (full).

  In the modes `replace` the stream x is one more source, and h = (1 − g) x + g read; so it is in
  the mode first_layer, where the only other source is the last output of the first layer. In the
  mode pre_gated sources are gated, σ(x W + b) ⊙ output. A read without sources is 0.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config, model)
    sites, width = (self.num_layers, self.num_sites), self.width
    self.replaces = self.mode in ("delta_replace", "full_replace", "first_layer")
    if self.mode == "pre_gated":
      self.source_gate = nn.Parameter(torch.zeros(*sites, width, width))
      self.source_bias = nn.Parameter(torch.zeros(*sites, width))

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> Any:
    return [], x

  def sources(self, state: Any, layer: int, site: int) -> list[Tensor]:
    found, x = super().sources(state, layer, site), state[1]
    if self.mode == "pre_gated":
      logits = x.float() @ self.source_gate[layer, site].float()
      gate = (logits + self.source_bias[layer, site].float()).sigmoid()
      found = [gate * source.float() for source in found]
    return [*found, x] if self.replaces else found

  def change(self, sources: list[Tensor], x: Tensor, *reader: Tensor) -> Tensor:
    if not sources:
      return torch.zeros_like(x)
    read = self.attend(sources, *reader)
    return read.float() - x.float() if self.replaces else read

  def write(self, state: Any, layer: int, site: int, out: Tensor, normed: dict, tape: Any) -> Any:
    sources, x = state[0], state[1] + out
    if self.mode != "first_layer":
      return [*sources, x if self.mode.startswith("full") else out], x
    ends_first = layer == 0 and site == self.num_sites - 1
    return [out] if ends_first else sources, x
