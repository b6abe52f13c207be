# options: num_streams gate eps
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import Cache

from ..configuration import ResjaxConfig
from ..shared.base import ResidualBase


class Residual(ResidualBase):
  """x = Σ_s softmax_s(w · RMS(H_s) / √D) H_s, H_s ← (1 − β_s) H_s + β_s f(x), with R streams H_s.

  The embedding and the first R − 1 outputs open a stream each; the others move all of them. With
  z_s = u · RMS(H_s) / √D a gate β_s is independent, σ(z_s + b_s), or competitive, the share of
  stream s in a softmax of b and all z. The output is one more read.
  """

  def __init__(self, config: ResjaxConfig, model: nn.Module):
    super().__init__(config)
    sites, biases = (self.num_layers, self.num_sites), 1
    if self.gate == "independent":
      biases = self.num_streams
    self.query = nn.Parameter(torch.zeros(*sites, self.width))
    self.gate_query = nn.Parameter(torch.zeros(*sites, self.width))
    self.gate_bias = nn.Parameter(torch.zeros(*sites, biases))
    self.final_query = nn.Parameter(torch.zeros(self.width))

  def scores(self, state: Tensor, query: Tensor) -> Tensor:
    """Returns q · RMS(H_s) / √D [B, T, R] of the streams that are open."""
    normed = functional.rms_norm(state.float(), (self.width,), eps=self.eps)
    return normed @ (query.float() / math.sqrt(self.width))

  def pooled(self, state: Tensor, query: Tensor) -> Tensor:
    shares = self.scores(state, query).softmax(-1)
    return (shares[..., None] * state.float()).sum(-2).to(state.dtype)

  def init(self, x: Tensor, position_ids: Tensor, cache: Cache | None) -> Tensor:
    return x[..., None, :]

  def read(self, state: Tensor, layer: int, site: int) -> tuple[dict[str, Tensor], Any]:
    return {"x": self.pooled(state, self.query[layer, site])}, None

  def write(self, state: Tensor, layer: int, site: int, out: Tensor, normed: dict, tape: Any):
    out = out[..., None, :]
    if state.shape[-2] < self.num_streams:
      return torch.cat([state, out], -2)
    scores = self.scores(state, self.gate_query[layer, site])
    bias = self.gate_bias[layer, site].float()
    if self.gate == "independent":
      gates = (scores + bias).sigmoid()
    else:
      forget = bias.expand(*scores.shape[:-1], 1)
      gates = torch.cat([forget, scores], -1).softmax(-1)[..., 1:]
    gates = gates[..., None]
    return ((1 - gates) * state.float() + gates * out.float()).to(state.dtype)

  def final(self, state: Tensor) -> Tensor:
    return self.pooled(state, self.final_query)
