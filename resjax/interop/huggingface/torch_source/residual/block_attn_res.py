# options: layers_per_block first_block rms_block value_norm key_norm key_rank scale temperature
# options: weights dynamic_query views num_heads eps
# free: implementation two_phase
# rename: layers_per_block attn_res_block_size
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ..configuration import ResjaxConfig
from ..shared.depth_read import DepthReads, inverse_rms

LAST_READ = "output_attn_res"


class Residual(DepthReads):
  """Sites read the embedding, the sums of completed depth blocks, and that of the running one.

  A depth block has attn_res_block_size layers. The query of a read of x, and the gain of its keys,
  have the names of Kimi K3: a projection to one number and a norm, in the layer or in the model.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    self.layers_per_block = config.attn_res_block_size
    self.reads = [f"{site}_res".replace("attention", "self_attention") for site in config.sites]
    self.holders = [*model.layers, model]  # a plain list: they do not become parts of this module
    for holder in self.holders:
      for name in (LAST_READ,) if holder is model else self.reads:
        proj, norm = torch.zeros(1, self.key_width), torch.ones(self.key_width)
        holder.add_module(f"{name}_proj", nn.ParameterDict({"weight": proj}))
        if self.key_norm == "gain":
          holder.add_module(f"{name}_norm", nn.ParameterDict({"weight": norm}))
    self.add_reads("", self.num_layers, self.num_sites, without=("query", "key_scale"))
    self.add_reads("final_", without=("query", "key_scale"))
    if self.own_views:
      self.add_reads("view_", self.num_layers, len(self.own_views))

  def vectors(self, holder: nn.Module, name: str) -> dict[str, Tensor]:
    found = {"query": getattr(holder, f"{name}_proj").weight[0]}
    if self.key_norm == "gain":
      found["key_scale"] = getattr(holder, f"{name}_norm").weight
    return found

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> Any:
    return [x], torch.zeros_like(x), torch.zeros_like(x)

  def read(self, state: Any, layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    begins = layer % self.layers_per_block == 0 and site == 0
    sources, views = state[0] if begins else [*state[0], state[1]], {}
    for view in self.view_names(site):
      reader = self.reader(layer, site, view)
      if view == "x":
        reader |= self.vectors(self.holders[layer], self.reads[site])
      if self.first_block == "uniform" and layer < self.layers_per_block:
        reader |= {name: torch.zeros_like(p) for name, p in reader.items() if "query" in name}
      views[view] = self.attend(reader, sources, z=state[1])
    return views, None

  def write(self, state: Any, layer: int, site: int, out: Tensor, normed: dict, tape: Any) -> Any:
    wide = out.float()
    kept = (wide * inverse_rms(wide, self.eps)).to(out.dtype) if self.rms_block else out
    sources, running, kept = state[0], state[1] + out, state[2] + kept
    ends = (layer + 1) % self.layers_per_block == 0 or layer + 1 == self.num_layers
    if not ends or site != self.num_sites - 1:
      return sources, running, kept
    return [*sources, kept], torch.zeros_like(out), torch.zeros_like(out)

  def final(self, state: Any) -> Tensor:
    return self.attend(self.final_reader() | self.vectors(self.holders[-1], LAST_READ), state[0])
