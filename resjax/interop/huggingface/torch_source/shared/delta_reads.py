from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..configuration import ResjaxConfig
from .base import ResidualBase


class DeltaReads(ResidualBase):
  """h = x + g ⊙ read, with the stream x to which outputs are added, and which is the output.

  A read is Σ_n a_n v_n over sources v_n, a = softmax_n(w · γ ⊙ RMS(v_n)), by heads of channels. The
  gate g is 1 (none), σ(b) (scalar), σ(x W + b) by channel and token (vector), or a number α. A null
  source is a learned vector per site that is read with the others. The state has the sources and x
  before all else.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    sites, width = (self.num_layers, self.num_sites), self.width
    self.own_views = {"x": "", "qk_v": "v", "qkv": "kv"}[self.views]
    self.query = nn.Parameter(torch.zeros(*sites, width))
    self.key_scale = nn.Parameter(torch.ones(*sites, width))
    if self.own_views:
      own = self.num_layers, len(self.own_views)
      self.view_query = nn.Parameter(torch.zeros(*own, width))
      self.view_key_scale = nn.Parameter(torch.ones(*own, width))
    if self.output_gate == "scalar":
      self.gate_bias = nn.Parameter(torch.zeros(*sites))
    if self.output_gate == "vector":
      self.gate_bias = nn.Parameter(torch.zeros(*sites, width))
      self.gate_weight = nn.Parameter(torch.zeros(*sites, width, width))
    if self.output_gate == "alpha":
      self.alpha = nn.Parameter(torch.zeros(*sites))
    if self.null_source:
      self.null = nn.Parameter(torch.zeros(*sites, width))

  def gate(self, x: Tensor, layer: int, site: int) -> Tensor | float:
    if self.output_gate == "none":
      return 1.0
    if self.output_gate == "alpha":
      return self.alpha[layer, site].float()
    logit = self.gate_bias[layer, site].float()
    if self.output_gate == "vector":
      logit = logit + x.float() @ self.gate_weight[layer, site].float()
    return logit.sigmoid()

  def sources(self, state: Any, layer: int, site: int) -> list[Tensor]:
    """Returns the sources of a site's read."""
    sources, x = state[:2]
    if not self.null_source:
      return sources
    return [*sources, self.null[layer, site].to(x.dtype).expand_as(x)]

  def attend(self, sources: list[Tensor], query: Tensor, key_scale: Tensor) -> Tensor:
    """Returns the sum of sources [B, T, D] by the softmax of their scores."""
    values = torch.stack(sources).float()
    keys = functional.rms_norm(values, (self.width,), eps=self.eps) * key_scale.float()
    scores = (keys * query.float()).unflatten(-1, (self.num_heads, -1)).sum(-1)
    heads = values.unflatten(-1, (self.num_heads, -1))
    return (scores.softmax(0)[..., None] * heads).sum(0).flatten(-2).to(sources[0].dtype)

  def change(self, sources: list[Tensor], x: Tensor, *reader: Tensor) -> Tensor:
    """Returns what g multiplies."""
    return self.attend(sources, *reader)

  def read(self, state: Any, layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    x, sources = state[1], self.sources(state, layer, site)
    readers = {"x": (self.query[layer, site], self.key_scale[layer, site])}
    for row, view in enumerate(self.own_views if site == 0 else ""):
      readers[view] = self.view_query[layer, row], self.view_key_scale[layer, row]
    gate, views = self.gate(x, layer, site), {}
    for view, reader in readers.items():
      change = self.change(sources, x, *reader)
      views[view] = (gate * change.float() + x.float()).to(x.dtype)
    return views, None

  def final(self, state: Any) -> Tensor:
    return state[1]
