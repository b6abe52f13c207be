# options: variant rank num_previous normalize
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ..configuration import ResjaxConfig
from ..shared.base import ResidualBase
from ..shared.low_rank import low_rank


class Residual(ResidualBase):
  """x_{i+1} = α_i f(x_i) + β_i (x_i + Σ_j γ_ij x_{i−j} A_ij B_ij) at every sublayer i.

  The variant names the parts: rw, learned α and β; lr, a low-rank map; pa, streams x_{i−j} before
  the newest one, j < residual_num_previous, each with a map of its own if there is lr too.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    parts, rank, width = self.variant.split("+"), self.rank, self.width
    self.weighs, self.maps, self.previous = ("rw" in parts, "lr" in parts, "pa" in parts)
    sites = self.num_layers, self.num_sites
    if self.weighs:
      self.mix = nn.Parameter(torch.ones(*sites, 2))
    rows = self.start(self.num_layers * self.num_sites)
    if self.previous:
      self.gamma = nn.Parameter(torch.ones(rows))
    if self.maps or (self.previous and rank):
      lead = (rows,) if self.maps and self.previous else sites
      self.down = nn.Parameter(torch.zeros(*lead, width, rank))
      self.up = nn.Parameter(torch.zeros(*lead, rank, width))

  def start(self, sublayer: int) -> int:
    """Returns where the rows of a sublayer start, which has one for each stream behind it."""
    return sum(min(self.num_previous, before + 1) for before in range(sublayer))

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> list[Tensor]:
    return [x]

  def read(self, state: list[Tensor], layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    return {"x": state[-1]}, None

  def write(self, state: list, layer: int, site: int, out: Tensor, normed: dict, tape: Any) -> list:
    branch, stream = out.float(), state[-1].float() + self.added(state, layer, site)
    if self.weighs:
      mix = self.mix[layer, site].float()
      mix = mix.softmax(0) if self.normalize == "softmax" else mix
      branch, stream = mix[0] * branch, mix[1] * stream
    kept = state[1 - self.num_previous :] if self.previous and self.num_previous > 1 else []
    return [*kept, (branch + stream).to(out.dtype)]

  def added(self, state: list[Tensor], layer: int, site: int) -> Tensor | float:
    """Returns the term that is added to the newest stream."""
    if not self.previous:
      return low_rank(state[-1], self.down[layer, site], self.up[layer, site]) if self.maps else 0.0
    sublayer, streams = layer * self.num_sites + site, state[::-1]
    rows = range(self.start(sublayer), self.start(sublayer + 1))
    terms = zip(self.gamma[rows.start : rows.stop].float(), rows, streams, strict=True)
    if self.maps:
      return sum(gamma * low_rank(x, self.down[row], self.up[row]) for gamma, row, x in terms)
    mixed = sum(gamma * x.float() for gamma, _, x in terms)
    return low_rank(mixed, self.down[layer, site], self.up[layer, site]) if self.rank else mixed

  def final(self, state: list[Tensor]) -> Tensor:
    return state[-1]
