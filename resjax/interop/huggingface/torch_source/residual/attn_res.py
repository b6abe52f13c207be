# options: window value_norm key_norm key_rank scale temperature weights dynamic_query
# options: views num_heads eps
# free: implementation two_phase
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache

from ..configuration import ResjaxConfig
from ..shared.depth_read import DepthReads


class Residual(DepthReads):
  """Every site reads the embedding and the outputs of all earlier sites; so does the output."""

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    self.add_reads("", self.num_layers, self.num_sites)
    if self.own_views:
      self.add_reads("view_", self.num_layers, len(self.own_views))
    self.add_reads("final_")

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> list[Tensor]:
    return [x]

  def read(self, state: list[Tensor], layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    views = self.view_names(site)
    return {view: self.attend(self.reader(layer, site, view), state) for view in views}, None

  def write(self, state: list, layer: int, site: int, out: Tensor, normed: dict, tape: Any) -> list:
    return [*state, out]

  def final(self, state: list[Tensor]) -> Tensor:
    return self.attend(self.final_reader(), state)
